"""open_checkpoint for every format: detection, casing, vocabulary, checkpoints of a run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.optimizers import AdamWeightDecay
from tests.other_formats import WRITERS, write_tf1

KINDS = {
    "hugging_face": "a Hugging Face model directory",
    "tf1": "a TF1 checkpoint in Google's format",
    "keras_hub": "a KerasHub preset",
}
every_form = pytest.mark.parametrize("form", WRITERS)


@every_form
def test_format_is_detected(tiny, tmp_path, form):
    model = tiny.make("pretrainer")
    WRITERS[form](tmp_path / "model", model, tiny.vocab)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert checkpoint.kind == KINDS[form]
    assert checkpoint.config == tiny.config
    assert checkpoint.vocab == tiny.vocab
    loaded = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(loaded)
    # KerasHub has no next-sentence head.
    assert len(report.new) == (2 if form == "keras_hub" else 0)
    for found, expected in zip(loaded.weights, model.weights, strict=True):
        assert found.path in report.new or np.array_equal(found, expected)
    if form != "tf1":  # The folder of a run has its model in model/, unless it is itself one.
        (tmp_path / "run.json").write_text("{}")
        (tmp_path / "model" / "run.json").write_text("{}")
        for path in (tmp_path, tmp_path / "model"):
            assert open_checkpoint(path).path == tmp_path / "model"
    if form == "hugging_face":  # It may also have Google's config.
        (tmp_path / "model" / "bert_config.json").write_text("{}")
        assert open_checkpoint(tmp_path / "model").kind == KINDS[form]


def test_missing_checkpoint_is_rejected_with_expected_formats(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such checkpoint; expected a model direc"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"model\.bin: is not a checkpoint; expected a model direc"
    ):
        open_checkpoint(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)


# --- vocabulary and casing ---


@every_form
def test_vocabulary_has_as_many_tokens_as_the_embedding_table(tiny, tmp_path, form, caplog):
    model = tiny.make("encoder", replace(tiny.config, vocab_size=24))
    vocab = [*tiny.vocab, *(f"more{index}" for index in range(7))]
    WRITERS[form](tmp_path / "model", model, vocab)
    if form == "hugging_face":
        (tmp_path / "model" / "tokenizer.json").unlink()
    file = next((tmp_path / "model").rglob("vocab*.txt"))

    def write(tokens):
        file.write_text("".join(f"{token}\n" for token in tokens))

    write([*vocab, "extra"])
    expected = rf"{file.name}: has 25 tokens, but vocab_size in the config is 24"
    with pytest.raises(InputError, match=expected):
        open_checkpoint(tmp_path / "model")
    write([*tiny.vocab, "[unused1]"])
    fitted = open_checkpoint(tmp_path / "model").vocab
    assert fitted == [*tiny.vocab, "[unused1]", *(f"[unused{n}]" for n in (0, 2, 3, 4, 5, 6))]
    assert (
        "has 18 tokens for 24 embedding rows; the other rows are named [unused0] to [unused6]"
        in caplog.text
    )
    convert(tmp_path / "model", tmp_path / "again")
    assert open_checkpoint(tmp_path / "again").vocab == fitted
    (tmp_path / "again" / "tokenizer.json").unlink()
    assert open_checkpoint(tmp_path / "again").vocab == fitted


@pytest.mark.parametrize(
    ("name", "is_lower"),
    [
        ("bert-base-uncased", True),  # Contains "ℝ", which has no lower case.
        ("bert-base-chinese", True),  # Contains "<S>".
        ("bert-base-cased", False),
        ("bert-base-multilingual-cased", False),
    ],
)
def test_casing_is_inferred_from_the_vocabulary(shared_data, name, is_lower):
    vocab = load_vocab(shared_data / "vocab" / name / "vocab.txt")
    assert guess_lower_case(vocab) is is_lower


def test_casing_is_inferred_from_googles_names_without_vocabulary(tiny, tmp_path):
    model = tiny.make("encoder")
    for name, is_lower in (
        ("cased_L-12_H-768_A-12", False),
        ("uncased_L-12_H-768_A-12", True),
        ("multi_cased_L-12_H-768_A-12", False),
        ("chinese_L-12_H-768_A-12", True),
    ):
        write_tf1(tmp_path / name, model)
        config = tmp_path / name / "bert_config.json"
        config.write_text(config.read_text().replace('"do_lower_case"', '"other"'))
        assert open_checkpoint(tmp_path / name).do_lower_case is is_lower
        assert open_checkpoint(tmp_path / name / "bert_model.ckpt").do_lower_case is is_lower


@pytest.mark.parametrize(
    ("form", "file", "key"),
    [
        ("hugging_face", "tokenizer_config.json", "do_lower_case"),
        ("tf1", "bert_config.json", "do_lower_case"),
        ("keras_hub", "tokenizer.json", "lowercase"),
    ],
)
def test_casing_that_is_not_a_boolean_is_rejected(tiny, tmp_path, form, file, key):
    WRITERS[form](tmp_path / "c", tiny.make("encoder"), tiny.vocab)
    settings = json.loads((tmp_path / "c" / file).read_text())
    settings.get("config", settings)[key] = "yes"
    (tmp_path / "c" / file).write_text(json.dumps(settings))
    with pytest.raises(InputError, match=rf"{file}: {key} is 'yes'; expected true or false"):
        open_checkpoint(tmp_path / "c")


# --- the checkpoints that a run saves while it trains ---


@pytest.fixture
def run(tiny, tmp_path):
    """Returns the folder of a finished run, and {step: its weights} of two checkpoints."""
    model, weights = tiny.make("pretrainer"), {}
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(model.trainable_variables)
    writer = CheckpointWriter(tmp_path / "checkpoints")
    for step in (5, 10):
        weights[step] = [np.array(weight) for weight in model.weights]
        writer.save(step, model, optimizer)
        writer.wait()
        for variable in model.weights:
            variable.assign(variable + 1.0)
    writer.close()
    save_model_directory(tmp_path / "model", model, tiny.vocab, TokenizerSettings(False))
    return tmp_path, weights


def test_weights_of_a_step_are_loaded_and_converted(run, tiny, tmp_path):
    folder, weights = run
    for step in (5, 10):
        path = folder / "checkpoints" / f"step-{step:08}"
        checkpoint = open_checkpoint(path)
        assert checkpoint.kind == "a training checkpoint"
        assert (checkpoint.config, checkpoint.vocab) == (tiny.config, tiny.vocab)
        assert not checkpoint.do_lower_case
        convert(path, tmp_path / "converted")
        for opened in (checkpoint, open_checkpoint(tmp_path / "converted")):
            model = BertPretrainer(opened.config)
            report = opened.load_into(model)
            # The file also has the states of the seed generators, which are not weights.
            assert len(model.variables) > len(model.weights)
            assert (report.new, report.ignored) == ((), ())
            assert all(map(np.array_equal, model.get_weights(), weights[step]))
    model = BertClassifier(checkpoint.config, 2)
    report = checkpoint.load_into(model)
    assert report.new == ("classifier/kernel", "classifier/bias")
    assert "masked_lm/output_bias" in report.ignored


def test_checkpoint_of_an_unfinished_run_and_damaged_weights_are_rejected(run):
    folder, _ = run
    path = folder / "checkpoints" / "step-00000005"
    checkpoint = open_checkpoint(path)
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"does not have the checksum in state\.json"):
        checkpoint.load_into(BertPretrainer(checkpoint.config))
    (folder / "model").rename(folder / "elsewhere")
    with pytest.raises(InputError, match=r"found no .*model, which has .*of a finished run"):
        open_checkpoint(path)
