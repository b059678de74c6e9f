"""`keras-bert adapt`: from a folder of documents to an adapted model, interrupted, and on JAX."""

import functools
import json
import math
import random
import shutil
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert
from data_tools import create_pretraining_data
from keras_bert.checkpoints import convert
from keras_bert.errors import EndedEarly, InputError
from keras_bert.pretraining import run as pretraining_run
from keras_bert.programs import adapt
from keras_bert.programs.program import call
from keras_bert.training.evaluate import make_evaluate
from tests import processes

KNOWN = ["good", "bad", "film", "book", "it", "is", "a", "very"]
NEW = ["goodfilm", "isfilm", "bada"]  # Their subwords are in the vocabulary.
TOKENS = ["[unused0]", *KNOWN, ".", *(f"##{word}" for word in KNOWN)]
# Large initial weights, so that few training steps are enough.
SIZES = {"max_position_embeddings": 32, "initializer_range": 0.2}
FLAGS = {
    "max_seq_length": 16,
    "min_frequency": 5,
    "train_batch_size": 8,
    "num_train_epochs": 3,
    "learning_rate": 1e-2,
    "mixed_precision": "float32",
}


def write_documents(folder: Path, count: int = 24) -> Path:
    """Writes documents of several formats, and a file of an unknown one."""
    folder.mkdir()
    chance = random.Random(0)
    rows = []
    for number in range(count):
        words = [[chance.choice(KNOWN + NEW) for _ in range(6)] for _ in range(4)]
        text = " ".join(" ".join(sentence).capitalize() + "." for sentence in words)
        if number % 4 == 0:
            (folder / f"{number}.txt").write_text(text)
        elif number % 4 == 1:
            (folder / f"{number}.md").write_text(text)
        elif number % 4 == 2:
            (folder / f"{number}.html").write_text(f"<html><body><p>{text}</p></body></html>")
        else:
            rows.append(json.dumps({"text": text}))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "drawing.svg").write_text("<svg/>")
    return folder


def command(place: Path, output_dir: Path, **changes) -> list[str]:
    values = {"input_file": place / "documents", "init_checkpoint": place / "bert"}
    values |= {"output_dir": output_dir, **FLAGS, **changes}
    return ["keras-bert adapt", "--nojit_compile", *(f"--{k}={v}" for k, v in values.items())]


def run(place: Path, output_dir: Path, **changes) -> int:
    """Runs the program in this process; returns its exit code."""
    return call(adapt.PROGRAM, command(place, output_dir, **changes))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def place(make_checkpoint, tmp_path_factory):
    """Creates a folder with documents and a checkpoint."""
    place = tmp_path_factory.mktemp("adapt")
    write_documents(place / "documents")
    make_checkpoint(place / "bert", TOKENS, "BertPretrainer", **SIZES)
    return place


@pytest.fixture(scope="module")
def finished(place):
    """Returns the folder of an adaptation that was not interrupted."""
    assert run(place, place / "finished") == 0
    return place / "finished"


@pytest.mark.slow
def test_results_compare_the_held_out_loss_before_and_after(finished):
    results = json.loads((finished / "results.json").read_text())
    assert results["train_documents"] == 23
    assert results["eval_documents"] == 1
    assert results["new_words"] == len(NEW)
    assert results["new_masked_lm_head"] is False
    records = json.loads((finished / "records" / "train" / "manifest.json").read_text())
    assert results["step"] == math.ceil(3 * records["counts"]["examples"] / 8)
    assert results["masked_lm_loss_after"] < results["masked_lm_loss_before"]
    for when in ("before", "after"):
        loss = results[f"masked_lm_loss_{when}"]
        assert results[f"masked_lm_perplexity_{when}"] == pytest.approx(math.exp(loss))
    before, after = (
        json.loads((finished / name / "results.json").read_text()) for name in ("before", "train")
    )
    assert before["masked_lm_loss"] == results["masked_lm_loss_before"]
    assert after["masked_lm_loss"] == results["masked_lm_loss_after"]
    assert before["unigram_masked_lm_loss"] == results["unigram_masked_lm_loss"]
    fingerprints = {
        json.loads((finished / name / "run.json").read_text())["settings"]["eval_fingerprint"]
        for name in ("before", "train")
    }
    assert len(fingerprints) == 1  # The same held-out records.
    train, held_out = (
        {*(finished / "text" / f"{name}.txt").read_text().strip().split("\n\n")}
        for name in ("train", "eval")
    )
    assert (len(train), len(held_out)) == (23, 1)
    assert not train & held_out


@pytest.mark.slow
def test_new_words_replace_unused_tokens_and_are_appended(finished, place):
    before, vocab = (
        (folder / "vocab.txt").read_text().splitlines()
        for folder in (place / "bert", finished / "model")
    )
    unused = before.index("[unused0]")
    assert {vocab[unused], *vocab[-2:]} == {*NEW}
    assert [*vocab[:unused], "[unused0]", *vocab[unused + 1 : -2]] == before
    config = json.loads((finished / "model" / "config.json").read_text())
    assert config["vocab_size"] == len(vocab)
    old, start = (
        load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
        for folder in (place / "bert", finished / "start")
    )
    subwords = [before.index("good"), before.index("##film")]
    np.testing.assert_allclose(start[vocab.index("goodfilm")], old[subwords].mean(0), atol=1e-7)


@pytest.mark.slow
def test_hard_wrapped_documents_are_reported_once(place, tmp_path, monkeypatch, capfd):
    chance = random.Random(0)
    paragraphs = [" ".join(chance.choices(KNOWN, k=80)) for _ in range(24)]
    wrapped = "\n\n".join(map(textwrap.fill, paragraphs))
    (tmp_path / "documents.txt").write_text(wrapped)
    stop = mock.Mock(side_effect=EndedEarly("enough"))
    monkeypatch.setattr(pretraining_run, "pretrain", stop)
    path = str(tmp_path / "documents.txt")
    assert run(place, tmp_path / "out", input_file=path, input_format="sentences") == 75
    err = capfd.readouterr().err
    assert err.count("hard-wrapped text") == 1
    assert f"{path}: files that look like hard-wrapped text, not like" in err
    assert "records/train: " in err


@pytest.mark.slow
def test_finished_adaptation_prints_its_results_again(finished, place, tmp_path, capfd):
    """The documents may have moved."""
    before = contents(finished)
    shutil.copytree(place / "documents", tmp_path / "moved")
    assert run(place, finished, input_file=tmp_path / "moved") == 0
    out, err = capfd.readouterr()
    assert "finished; nothing to do" in err
    assert contents(finished) == before
    names = [line.split(" = ")[0] for line in out.splitlines()]
    results = json.loads((finished / "results.json").read_text())
    assert names == [*results]
    function = functools.partial(keras_bert.adapt, output_dir=finished, jit_compile=False, **FLAGS)
    assert function(tmp_path / "moved", place / "bert") == results
    with pytest.raises(InputError, match=r"^folder: no file matches 'nothing'; expected a file"):
        function("nothing", place / "bert")
    assert names[-2:] == ["masked_lm_perplexity_before", "masked_lm_perplexity_after"]
    last = err.splitlines()[-1]
    assert f"keras-bert classify --train_file=TRAIN.csv --init_checkpoint={finished} " in last
    assert "model/, records/, results.json" in err.splitlines()[-2]


@pytest.mark.slow
def test_interrupted_stages_are_resumed(finished, place, tmp_path, monkeypatch, capfd):
    """Interrupts the program at the start of each stage, and then lets it end."""
    output_dir = tmp_path / "out"
    build = create_pretraining_data, "create_pretraining_data"
    stages = [
        (adapt, "split_documents", 0),
        (adapt, "_extend_vocab", 0),
        (convert, "convert", 0),
        *((*build, calls) for calls in (0, 1)),
        *((pretraining_run, "pretrain", calls) for calls in (0, 1)),
        (adapt, "atomic_path", 0),
    ]
    for module, name, skipped in stages:
        original, calls = getattr(module, name), []

        def interrupted(*arguments, original=original, calls=calls, skipped=skipped, **named):
            calls.append(arguments)
            if len(calls) > skipped:
                raise KeyboardInterrupt
            return original(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            assert run(place, output_dir) == 130, name
        assert len(calls) == skipped + 1
        assert not (output_dir / "results.json").exists()
        assert "same command again to resume" in capfd.readouterr().err
    assert run(place, output_dir) == 0
    for name in ("results.json", "model/model.safetensors", "model/vocab.txt"):
        assert (output_dir / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.slow
def test_training_is_evaluated_at_most_ten_times(place, tmp_path, monkeypatch):
    """Checkpoints every 2 steps stand for those every 1000 steps of long runs.

    The run is also interrupted after the training.
    """
    calls = []

    def counted(*arguments, **options):
        score = make_evaluate(*arguments, **options)
        return lambda *values: calls.append(1) or score(*values)

    monkeypatch.setattr(pretraining_run, "make_evaluate", counted)
    monkeypatch.setattr(adapt, "_MAX_CHECKPOINT_STEPS", 2)
    steps, evaluations = 25, 9
    flags = {"num_train_steps": steps, "train_batch_size": 64}
    with monkeypatch.context() as patch:
        interrupt = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr(pretraining_run, "save_model_directory", interrupt)
        assert run(place, tmp_path / "out", **flags) == 130
    assert run(place, tmp_path / "out", **flags) == 0
    untrained = 1
    assert len(calls) - untrained == evaluations
    rows = [json.loads(row) for row in (tmp_path / "out" / "train" / "metrics.jsonl").open()]
    steps_evaluated = [row["step"] for row in rows if "eval_loss" in row]
    assert len(steps_evaluated) == evaluations <= 10
    assert steps_evaluated[-1] == steps
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["masked_lm_loss_after"] == rows[-1]["eval_masked_lm_loss"]


def one_line(err: str) -> str:
    """Returns the only error line."""
    (line,) = [line for line in err.splitlines() if line.startswith("keras-bert adapt: error: ")]
    assert err.splitlines()[-1] == line
    return line


@pytest.mark.slow
def test_changed_settings_and_documents_are_rejected(finished, place, tmp_path, capfd):
    before = contents(finished)
    shutil.copytree(place / "documents", tmp_path / "changed")
    (tmp_path / "changed" / "0.txt").write_text("Another text.")
    for changes, message in (
        ({"learning_rate": 1e-3}, "learning_rate was 0.01 and is now 0.001; expected the same"),
        ({"input_file": tmp_path / "changed"}, "the content of input has changed"),
    ):
        assert run(place, finished, **changes) == 1
        assert f"other settings: {message}" in one_line(capfd.readouterr().err)
    assert contents(finished) == before


@pytest.mark.slow
def test_checkpoint_without_head_and_corpus_without_new_words(
    place, make_checkpoint, tmp_path, capfd
):
    """The encoder also has a user token of transformers, which the records must contain."""
    make_checkpoint(tmp_path / "bert", [*TOKENS, "[URL]"], user_tokens=["[URL]"], **SIZES)
    changes = {"min_frequency": 1000, "init_checkpoint": tmp_path / "bert", "num_train_steps": 2}
    assert run(place, tmp_path / "out", **changes) == 0
    err = capfd.readouterr().err
    assert "has no masked-LM head; it is newly initialized" in err
    assert f"No new words; the vocabulary stays that of {tmp_path / 'bert'}" in err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["new_words"], results["new_masked_lm_head"]) == (0, True)
    assert results["step"] == 2
    assert not (tmp_path / "out" / "start").exists()
    before, after = (tmp_path / name / "vocab.txt" for name in ("bert", "out/model"))
    assert before.read_text() == after.read_text()
    added = json.loads((tmp_path / "out" / "model" / "tokenizer_config.json").read_text())
    assert "[URL]" in json.dumps(added)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({}, "--input_file: no file matches"),
        ({"a.txt": "A good film. A bad book."}, "a single document with text, read as --input_for"),
        ({"a.svg": "<svg/>"}, "no documents with text"),
    ],
)
def test_too_few_documents_are_rejected(place, tmp_path, documents, message, capfd):
    (tmp_path / "in").mkdir()
    for name, text in documents.items():
        (tmp_path / "in" / name).write_text(text)
    assert run(place, tmp_path / "out", input_file=tmp_path / "in") == 1
    assert message in one_line(capfd.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vocab", "is_decoder", "message"),
    [
        (None, False, "has no vocabulary; expected a checkpoint with a vocabulary"),
        ("[PAD]\n[OTHER]\n[CLS]\n[SEP]\n[MASK]\na\n", False, "expected the special token(s) [UNK]"),
        ("", True, "is a left-to-right model (is_decoder); adapt expects a b"),
    ],
)
def test_unusable_checkpoints_are_rejected(
    place, make_checkpoint, tmp_path, vocab, is_decoder, message, capfd
):
    path = make_checkpoint(tmp_path / "bert", "a", "BertPretrainer", is_decoder=is_decoder)
    if not is_decoder:
        (path / "tokenizer.json").unlink()  # It has precedence.
        (path / "vocab.txt").unlink()
    if vocab:
        (path / "vocab.txt").write_text(vocab)
    assert run(place, tmp_path / "out", init_checkpoint=tmp_path / "bert") == 1
    assert message in one_line(capfd.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("output_dir", "message"),
    [
        ("documents", "is the folder of the input"),
        ("documents/out", "which is read; expected another folder"),
        ("bert", "overlaps with --init_checkpoint"),
        ("bert/out", "which is read; expected another folder"),
        ("other", "contains other files, such as notes.txt; expected a new folder"),
        ("run", "contains a run with other settings: "),
        ("file", "file: Not a directory"),
        (".", "contains the input"),
    ],
)
def test_folders_of_other_files_are_rejected(place, tmp_path, output_dir, message, capfd):
    shutil.copytree(place / "documents", tmp_path / "documents")
    shutil.copytree(place / "bert", tmp_path / "bert")
    for name in ("other/notes.txt", "run/run.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps({"settings": {"task_name": "MRPC"}}))
    (tmp_path / "file").touch()
    before = contents(tmp_path)
    folders = {"input_file": tmp_path / "documents", "init_checkpoint": tmp_path / "bert"}
    assert run(place, tmp_path / output_dir, **folders) == 1
    assert message in one_line(capfd.readouterr().err)
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_adaptation_on_jax(finished, place, backend_python, tmp_path):
    """The records, and the losses before the training, are those of the TensorFlow backend."""
    arguments = command(place, tmp_path / "jax", num_train_steps=2)[1:]
    python = backend_python("jax")
    processes.run_on("jax", python, ["-m", "keras_bert", "adapt", *arguments])
    expected, results = (
        json.loads((folder / "results.json").read_text()) for folder in (finished, tmp_path / "jax")
    )
    settings = json.loads((tmp_path / "jax" / "run.json").read_text())["settings"]
    assert settings["backend"] == "jax"
    assert results["masked_lm_loss_after"] != results["masked_lm_loss_before"]
    trained = {name for name in expected if name.endswith("_after")} | {"step"}
    assert {name: results.pop(name) for name in trained}.keys() == trained
    assert results == pytest.approx({k: v for k, v in expected.items() if k not in trained}, 1e-4)
