"""Tests that features equal transformers for every layer and pooling, in line order."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.tasks.features import FeatureSettings, extract_features
from keras_bert.text.tokenizer import BertTokenizer


@pytest.fixture(scope="module")
def parts(checkpoint):
    opened = open_checkpoint(checkpoint)
    encoder = BertEncoder(opened.config)
    opened.load_into(encoder)
    return encoder, BertTokenizer(opened.vocab)


def run(parts, lines, layers, pooling="none", length=16, **settings):
    settings = {"batch_size": 2, "jit_compile": False} | settings
    return list(
        extract_features(lines, *parts, FeatureSettings(layers, pooling, length, **settings))
    )


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_every_layer_equals_transformers(parts, golden, jit_compile):
    found = run(parts, golden["texts"], [0, 1], jit_compile=jit_compile)
    assert [line.index for line in found] == [0, 1, 2, 3]
    for line in found:
        states = golden[f"hidden_states_{line.index}"][1:]  # Without the embeddings.
        assert line.input_ids.tolist() == golden[f"input_ids_{line.index}"].tolist()
        np.testing.assert_allclose(line.values, states.transpose(1, 0, 2), atol=1e-5)


def test_layers_are_in_the_requested_order_and_count_from_the_end(parts, golden):
    first, second = run(parts, golden["texts"][:1], [-1, -2]), run(parts, golden["texts"][:1], [1])
    states = golden["hidden_states_0"]
    np.testing.assert_allclose(first[0].values[:, 0], states[2], atol=1e-5)
    np.testing.assert_allclose(first[0].values[:, 1], states[1], atol=1e-5)
    np.testing.assert_allclose(second[0].values[:, 0], states[2], atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("cls", lambda states: states[:, 0]),
        ("mean", lambda states: states.mean(axis=1)),
        ("max", lambda states: states.max(axis=1)),
    ],
)
def test_pooling_is_over_the_tokens_of_a_line_without_its_padding(parts, golden, pooling, pooled):
    for line in run(parts, golden["texts"], [-2, -1], pooling):
        expected = pooled(golden[f"hidden_states_{line.index}"][1:])
        np.testing.assert_allclose(line.values, expected, atol=1e-5)


def test_line_that_is_too_long_is_truncated_and_counted(parts, caplog):
    long = "wa wb wc wd we wf wg wh"
    found = run(parts, [long, f"{long} ||| wz", "wa"], [-1], length=7)
    tokens = [[parts[1].vocab[i] for i in line.input_ids] for line in found]
    assert tokens[0] == ["[CLS]", "wa", "wb", "wc", "wd", "we", "[SEP]"]
    assert tokens[1] == ["[CLS]", "wa", "wb", "wc", "[SEP]", "wz", "[SEP]"]
    assert "2 of 3 lines had more than 7 tokens and were truncated" in caplog.text


def test_lines_are_read_one_window_at_a_time(parts, monkeypatch):
    monkeypatch.setattr("keras_bert.tasks.features.WINDOW_BATCHES", 3)
    read = 0

    def lines():
        nonlocal read
        for index in itertools.count():
            read += 1
            yield "wa wb" if index % 2 else "wc"

    features = extract_features(lines(), *parts, FeatureSettings([-1], "cls", 16, 2, False))
    assert next(features).index == 0
    assert read == 6
    rest = list(itertools.islice(features, 6))
    assert [line.index for line in rest] == [1, 2, 3, 4, 5, 6]
    assert read == 12
    np.testing.assert_allclose(rest[0].values, rest[2].values, atol=1e-6)


def test_batch_that_does_not_fit_in_memory_is_rejected(parts, monkeypatch):
    monkeypatch.setattr("keras_bert.models.memory.available_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"--batch_size=512: 512 rows of 3 tokens need at least"):
        run(parts, ["wa"] * 512, [-1], "cls", batch_size=512)


def test_batch_is_not_larger_than_the_file(parts, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "keras_bert.tasks.features.check_batch_fits", lambda _, rows, *others: sizes.append(rows)
    )
    assert len(run(parts, ["wa", "wb"], [-1], batch_size=10**6)) == 2
    assert sizes == [2]


@pytest.mark.parametrize("layers", [[2], [-3], [], [0, 5]])
def test_layer_that_does_not_exist_is_rejected(parts, layers):
    with pytest.raises(
        InputError, match=r"--layers=.*: expected numbers from 0 .* to 1 .*, or from -2"
    ):
        run(parts, ["wa"], layers)


def test_first_token_of_a_left_to_right_encoder_is_rejected(parts):
    causal = BertEncoder(dataclasses.replace(parts[0].config, is_decoder=True))
    with pytest.raises(InputError, match=r"--pooling=cls: in a left-to-right model .*mean or max"):
        run((causal, parts[1]), ["wa"], [-1], "cls")
