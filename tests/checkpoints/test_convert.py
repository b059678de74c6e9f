"""Conversions: bit-exact from all formats; weights missing from the source stay missing."""

import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.convert import convert, new_positions
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier
from keras_bert.models.encoder import BertEncoder
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.text.settings import TokenizerSettings
from tests.other_formats import WRITERS

KINDS = ("encoder", "pretrainer", "classifier", "token_classifier", "span_labeler")


@pytest.fixture(scope="module")
def encoder(tiny, tmp_path_factory):
    """Saves an encoder."""
    path = tmp_path_factory.mktemp("encoder") / "a"
    save_model_directory(path, tiny.make("encoder"), tiny.vocab)
    return path


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tiny, tmp_path_factory):
    """Saves a model of each kind with every setting that a directory can hold."""
    config = replace(tiny.config, hidden_act="gelu", layer_norm_eps=1e-7)
    config = replace(config, is_decoder=request.param == "pretrainer")  # Left to right.
    model = tiny.make(request.param, config)
    labels = [f"label {index}" for index in range(getattr(model, "num_labels", 0))]
    path = tmp_path_factory.mktemp(request.param) / "saved"
    description = {
        "vocab": tiny.vocab,
        "tokenizer_settings": TokenizerSettings(False),
        "labels": labels,
        "problem_type": "multi_label_classification" if labels else None,
        "extra": {"task_specific_params": {"threshold": 0.5}},
    }
    save_model_directory(path, model, **description)
    return path, model, description


@pytest.mark.parametrize("form", ["hugging_face", "tf1"])
def test_conversion_is_bit_exact(saved, form, tmp_path):
    path, model, description = saved
    WRITERS[form](tmp_path / "source", model, **description)
    report = convert(tmp_path / "source", tmp_path / "target")
    assert (report.new, report.ignored) == ((), ())
    for file in path.iterdir():
        if file.name == "config.json":  # The order of its keys may differ.
            opened = open_checkpoint(tmp_path / "target")
            assert opened.settings == open_checkpoint(path).settings
            assert opened.config == model.config
        else:
            assert (tmp_path / "target" / file.name).read_bytes() == file.read_bytes(), file.name


def test_heads_missing_from_the_source_are_not_written(tiny, tmp_path):
    save_model_directory(tmp_path / "a", tiny.make("pretrainer"), tiny.vocab)
    weights = load_file(tmp_path / "a" / "model.safetensors")
    weights = {n: v for n, v in weights.items() if "seq_rel" not in n and "pooler" not in n}
    save_file(weights, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    report = convert(tmp_path / "a", tmp_path / "b")
    assert report.new == (
        "encoder/pooler/dense/kernel",
        "encoder/pooler/dense/bias",
        "next_sentence/kernel",
        "next_sentence/bias",
    )
    assert load_file(tmp_path / "b" / "model.safetensors").keys() == weights.keys()
    assert open_checkpoint(tmp_path / "b").architecture == "BertForMaskedLM"


def test_conversion_without_heads_allows_a_new_task(tiny, tmp_path):
    save_model_directory(tmp_path / "a", tiny.make("classifier"), tiny.vocab)
    model = BertClassifier(tiny.config, 2)
    with pytest.raises(InputError, match=r"classifier\.weight has shape \[3, 8\], expected \[2, 8"):
        open_checkpoint(tmp_path / "a").load_into(model)
    report = convert(tmp_path / "a", tmp_path / "b", heads=False)
    assert report.ignored == ("classifier.bias", "classifier.weight")
    opened = open_checkpoint(tmp_path / "b")
    assert (opened.architecture, opened.labels) == ("BertModel", None)
    assert opened.load_into(model).new == ("classifier/kernel", "classifier/bias")


def test_only_earlier_output_is_replaced(encoder, tmp_path):
    convert(encoder, tmp_path / "b")
    convert(encoder, tmp_path / "b")
    (tmp_path / "b" / "thesis.txt").write_text("all my work")
    with pytest.raises(InputError, match=r"contains thesis\.txt"):
        convert(encoder, tmp_path / "b")
    with pytest.raises(InputError, match="is both source and target"):
        convert(encoder, encoder)
    with pytest.raises(InputError, match="is inside the source"):
        convert(encoder, encoder / "new")
    with pytest.raises(InputError, match=r"contains thesis\.txt; expected a new path"):
        save_model_directory(tmp_path / "b", BertEncoder.from_pretrained(encoder))
    with pytest.raises(InputError, match="is a file"):
        save_model_directory(tmp_path / "b" / "thesis.txt", BertEncoder.from_pretrained(encoder))
    assert (tmp_path / "b" / "thesis.txt").read_text() == "all my work"
    assert os.listdir(tmp_path) == ["b"]


def test_program_prints_a_report_and_one_line_errors(encoder, tmp_path, run_program):
    done = run_program("convert.py", str(encoder), str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{encoder}/model.safetensors: 39 weights loaded"
    assert second == f"{tmp_path}/b: written"
    done = run_program("convert.py", str(encoder))
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert "expected two arguments, SRC and DST, got" in error
    assert error.endswith("the shortest command is: keras-bert convert SRC DST")


# --- fewer layers, more positions ---


TABLE = "bert.embeddings.position_embeddings.weight"


@pytest.fixture(scope="module")
def source(tiny, tmp_path_factory):
    """A pre-trained model with random weights, 4 layers and 10 positions."""
    config = replace(tiny.config, num_hidden_layers=4, max_position_embeddings=10)
    path = tmp_path_factory.mktemp("source") / "bert"
    model = tiny.make("pretrainer", config)
    save_model_directory(path, model, tiny.vocab)
    return path


def inputs_of(length):
    ids = 5 + np.arange(length, dtype=np.int32)[np.newaxis] % 5
    return {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}


def weights(path):
    return load_file(path / "model.safetensors")


def test_the_chosen_layers_are_kept_in_their_order(source, tmp_path):
    convert(source, tmp_path / "small", layers=[1, 3])
    old, new = weights(source), weights(tmp_path / "small")
    for name, value in new.items():
        for small, large in ((0, 1), (1, 3)):
            name = name.replace(f"layer.{small}.", f"layer.<{large}>.")
        assert np.array_equal(value, old[name.replace("<", "").replace(">", "")]), name
    assert len(old) - len(new) == 2 * 16
    assert open_checkpoint(tmp_path / "small").config.num_hidden_layers == 2


def test_interpolated_positions_keep_the_ends_and_lie_between_their_neighbors():
    table = np.array([[0.0, 5.0], [2.0, 3.0], [4.0, 9.0]], np.float32)
    extended = new_positions(table, 5)
    assert extended.dtype == np.float32
    assert extended.tolist() == [[0, 5], [1, 4], [2, 3], [3, 6], [4, 9]]


def test_extended_model_takes_longer_texts(source, tmp_path):
    convert(source, tmp_path / "long", positions=25)
    old, new = weights(source), weights(tmp_path / "long")
    assert all(np.array_equal(new[name], old[name]) for name in old if name != TABLE)
    short, long = (BertEncoder.from_pretrained(p) for p in (source, tmp_path / "long"))
    assert long(inputs_of(25))["sequence_output"].shape == (1, 25, 8)
    with pytest.raises(InputError, match="25"):
        short(inputs_of(25))


def test_extended_positions_are_marked_until_the_model_is_trained(source, tmp_path, caplog):
    with caplog.at_level("WARNING", "absl"):
        convert(source, tmp_path / "long", positions=25)
        TextEmbedder.from_pretrained(tmp_path / "long", 25)
    extended = "the table of positions was extended from 10 to 25"
    warnings = [message for message in caplog.messages if extended in message]
    assert warnings == [
        f"{extended}; train the model with texts of that length",
        f"{tmp_path / 'long'}: {extended}, and not trained since; train the model before you use "
        "it",
    ]


@pytest.mark.slow
def test_training_removes_the_mark_of_extended_positions(source, tmp_path, caplog):
    convert(source, tmp_path / "long", positions=25)
    embedder = TextEmbedder.from_pretrained(tmp_path / "long", 25)
    pairs = (["a", "b"], ["c", "d"])
    embedder.fit(pairs, batch_size=2, epochs=1, verbose=0, jit_compile=False)
    embedder.save_pretrained(tmp_path / "trained")
    caplog.clear()
    with caplog.at_level("WARNING", "absl"):
        TextEmbedder.from_pretrained(tmp_path / "trained")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [0, 4]}, "--keep_layers=0,4: the model has 4 layers; expected different"),
        ({"layers": [2, 2]}, "--keep_layers=2,2: "),
        ({"layers": [-1]}, "--keep_layers=-1: "),
        ({"layers": [1, 0]}, "--keep_layers=1,0: .* from 0 to 3 in increasing order"),
        ({"positions": 10}, "--max_position_embeddings=10: the model has 10 positions; expected"),
        ({"positions": 2}, "--max_position_embeddings=2: "),
    ],
)
def test_impossible_changes_are_rejected_and_nothing_is_written(source, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        convert(source, tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_the_program_checks_its_flags(source, tmp_path, run_program):
    program = "convert.py"
    done = run_program(program, str(source), str(tmp_path / "new"), keep_layers="0,x")
    assert done.returncode == 1
    assert "--keep_layers=0,x: expected integers, separated by commas" in done.stderr
    done = run_program(
        program, str(source), str(tmp_path / "new"), keep_layers="3", max_position_embeddings=11
    )
    assert done.returncode == 0, done.stderr
    config = open_checkpoint(tmp_path / "new").config
    assert (config.num_hidden_layers, config.max_position_embeddings) == (1, 11)
