"""Conversions that keep some layers, or extend the table of positions."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.checkpoints.convert import convert, new_positions
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.tasks.embedding.task import TextEmbedder

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


def test_the_first_layers_alone_compute_the_hidden_states_of_the_whole_model(source, tmp_path):
    convert(source, tmp_path / "small", layers=[0, 1], heads=False)
    large, small = (BertEncoder.from_pretrained(p) for p in (source, tmp_path / "small"))
    inputs = inputs_of(4)
    expected = large.layer_outputs(inputs, attention_probabilities=False)["hidden_states"][2]
    assert np.array_equal(small(inputs)["sequence_output"], expected)


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
        ({"layers": [1, 0]}, "--keep_layers=1,0: .* from 0 to 3 in increasing order"),
        ({"layers": [2, 2]}, "--keep_layers=2,2: "),
        ({"layers": [-1]}, "--keep_layers=-1: "),
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
    done = run_program(program, str(source), str(tmp_path / "new"), keep_layers="")
    assert "--keep_layers=: expected integers, separated by commas" in done.stderr
    done = run_program(
        program, str(source), str(tmp_path / "new"), keep_layers="3", max_position_embeddings=11
    )
    assert done.returncode == 0, done.stderr
    config = open_checkpoint(tmp_path / "new").config
    assert (config.num_hidden_layers, config.max_position_embeddings) == (1, 11)
