"""Runs export_model.py as a user does: the same answers as run_squad.py, and a full disk."""

import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers the ops of the loaded models.

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.models import BertSpanLabeler
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab
from tests import processes

LANGUAGES = ("en", "de", "zh")


def read_article(file: Path, language: str) -> list[dict]:
    """Returns the paragraphs of the article with 30 questions; ids start with the language."""
    paragraphs = json.loads(file.read_text("utf-8"))["data"][3]["paragraphs"]
    for entry in (entry for paragraph in paragraphs for entry in paragraph["qas"]):
        entry["id"] = f"{language}-{entry['id']}"
    return paragraphs


@pytest.fixture(scope="module")
def model(shared_data: Path, tmp_path_factory) -> Path:
    """Saves a span labeler with widely spread random weights and a multilingual vocabulary."""
    vocab = load_vocab(shared_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt")
    config = BertConfig(
        len(vocab), 16, 1, 2, 32, max_position_embeddings=128, initializer_range=0.5
    )
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("squad") / "bert"
    save_model_directory(folder, BertSpanLabeler(config), vocab, TokenizerSettings(False))
    return folder


@pytest.mark.slow
def test_export_gives_the_same_xquad_answers_as_run_squad(
    run_program, model: Path, shared_data: Path, tmp_path: Path
):
    paragraphs = [
        paragraph
        for language in LANGUAGES
        for paragraph in read_article(shared_data / "squad" / f"xquad.{language}.json", language)
    ]
    (tmp_path / "paragraphs.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    # Windows of 128 tokens: nearly all contexts need several windows.
    flags = {"max_seq_length": 128, "doc_stride": 64, "version_2_with_negative": True}
    flags |= {"null_score_diff_threshold": -5.4}
    done = run_program(
        "run_squad.py",
        init_checkpoint=model,
        predict_file=tmp_path / "paragraphs.json",
        output_dir=tmp_path / "out",
        do_train=False,
        do_eval=False,
        mixed_precision="float32",
        jit_compile=False,
        **flags,
    )
    assert done.returncode == 0, done.stderr
    done = run_program(
        "export_model.py", model_dir=model, export_dir=tmp_path / "served" / "1", **flags
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'served' / '1'}\n"

    expected = json.loads((tmp_path / "out" / "predictions.json").read_text())
    rows = [(e["id"], e["question"], p["context"]) for p in paragraphs for e in p["qas"]]
    ids, questions, contexts = zip(*rows, strict=True)
    serve = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    answers = serve(question=tf.constant(questions), context=tf.constant(contexts))["answer"]
    found = {name: text.decode() for name, text in zip(ids, answers.numpy(), strict=True)}
    assert len(found) == 90
    assert 15 < sum(map(bool, found.values())) < 75  # Some have an answer, some have none.
    differ = {name for name in expected if found[name] != expected[name]}
    assert differ == set()


@pytest.mark.slow
def test_full_disk_fails_with_one_line_and_no_files(make_checkpoint, tmp_path: Path):
    model = make_checkpoint(tmp_path / "bert", ["a"])
    limit = 1000  # Maximum file size in bytes.
    code = f"""if True:
        import resource, sys
        from keras_bert.programs.command import start
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        start("keras_bert.programs.export", ["export_model.py", *sys.argv[1:]])
    """
    flags = f"--model_dir={model}", f"--export_dir={tmp_path / 'served' / '1'}"
    process = processes.start(["-c", code, *flags], stderr=processes.PIPE)
    error = process.communicate()[1]
    assert process.returncode == 1
    assert f"{tmp_path / 'served' / '1'}: cannot be written" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert not list((tmp_path / "served").iterdir())
