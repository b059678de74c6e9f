"""MaskFiller: tokens and probabilities, training with dynamic masks, invalid input, exports."""

import shutil
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export.network import Network
from keras_bert.tasks import fill_mask, task
from keras_bert.tasks.fill_mask import MaskFiller, ServedFillMask
from keras_bert.tasks.load import load
from keras_bert.tasks.prepared import prepare
from keras_bert.text.tokenizer import BertTokenizer
from tests.padded_rows import padded_rows
from tests.tasks.classification.conftest import VOCAB

# One mask; two; none; two, of which one is beyond the length.
TEXTS = [
    "The [MASK] is very good.",
    "It is [MASK] and [MASK].",
    "a film",
    f"[MASK] {'very ' * 20} [MASK]",
]


MASKS = [1, 2, 0, 1]
CORPUS = [f"it is {'very ' * (i % 9)}{('good', 'bad')[i % 2]} ." for i in range(24)]
FAST = {"verbose": 0, "batch_size": 8, "learning_rate": 3e-3, "jit_compile": False}


@pytest.fixture(scope="module")
def filler(pretrained):
    return MaskFiller.from_pretrained(pretrained, max_seq_length=16, top_k=15)


def assert_same(answers, expected):
    assert answers.keys() == expected.keys()
    for name, rows in expected.items():
        for mine, theirs in zip(answers[name], rows, strict=True):
            if name == "scores":
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
            else:
                np.testing.assert_array_equal(mine, theirs)


def test_each_mask_has_a_row_of_tokens(pretrained, filler):
    answers = filler.predict(TEXTS)
    assert answers.keys() == {"tokens", "token_ids", "scores", "truncated"}
    assert answers.pop("truncated").tolist() == [False, False, False, True]
    for values in answers.values():
        assert [value.shape for value in values] == [(count, 15) for count in MASKS]
    few = MaskFiller.from_pretrained(pretrained, max_seq_length=16, top_k=3)
    assert [value.shape for value in few.predict(TEXTS)["tokens"]] == [(n, 3) for n in MASKS]


def test_each_mask_has_the_probabilities_of_its_position(filler):
    ids = filler.processor.preprocess(TEXTS[1:2]).input_ids.numpy()
    places = np.flatnonzero(ids[0] == filler.tokenizer.mask_token_id)[np.newaxis]
    inputs = {
        "input_ids": ids,
        "input_mask": ids * 0 + 1,
        "segment_ids": ids * 0,
        "masked_lm_positions": places.astype(np.int32),
    }
    logits = np.asarray(filler.model(inputs)["masked_lm_logits"], float)[0]
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    answers = filler.predict(TEXTS)
    scores, token_ids = answers["scores"][1], answers["token_ids"][1]
    np.testing.assert_allclose(scores, np.take_along_axis(expected, token_ids, 1), atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


@pytest.mark.parametrize("chunk_size", [3, 1024])
def test_predictions_do_not_depend_on_batches_and_chunks(filler, chunk_size, monkeypatch):
    monkeypatch.setattr(task, "prepare", lambda *given, **more: prepare(*given, chunk_size, **more))
    texts = [*TEXTS, *TEXTS[::-1], "", "\ud800 [MASK]"]
    one = [filler.predict([text]) for text in texts]
    expected = {name: [row for each in one for row in each[name]] for name in one[0]}
    for batch_size in (1, 3, 32):
        assert_same(filler.predict(texts, batch_size=batch_size), expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_memory_for_logits_does_not_grow_with_the_batch(make_checkpoint, tmp_path, method):
    path = make_checkpoint(tmp_path / "large", [f"w{i}" for i in range(8_000)])
    filler = MaskFiller.from_pretrained(path, max_seq_length=64)
    texts = [" ".join(f"w{7 * i + j}" for j in range(52)) + 10 * " [MASK]" for i in range(160)]
    tracemalloc.start()
    getattr(filler, method)(texts, batch_size=160)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # All logits are 1,600 x 8,005 floats, 51 MB.


@pytest.fixture(scope="module")
def trained(pretrained):
    filler = MaskFiller.from_pretrained(pretrained, max_seq_length=16)
    history = filler.fit(CORPUS, validation_data=CORPUS[:10], epochs=4, **FAST)
    return filler, history.history


@pytest.mark.slow
def test_fit_learns_from_texts(trained, tmp_path):
    filler, history = trained
    assert history.keys() >= {"loss", "val_loss", "val_masked_lm_loss", "val_masked_lm_accuracy"}
    assert history["val_loss"][-1] < history["val_loss"][0]
    metrics = filler.evaluate(CORPUS[:10])
    assert metrics.keys() == {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    assert metrics["loss"] == pytest.approx(history["val_loss"][-1], abs=1e-5)
    filler.save_pretrained(tmp_path / "out")
    assert load(tmp_path / "out").evaluate(CORPUS[:10]) == pytest.approx(metrics, abs=1e-6)


@pytest.mark.slow
def test_heads_without_a_loss_stay_unchanged(pretrained, trained):
    before, after = MaskFiller.from_pretrained(pretrained).model, trained[0].model
    for of in (lambda model: model.encoder.pooler, lambda model: model.next_sentence):
        for mine, theirs in zip(of(after).weights, of(before).weights, strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (mine, theirs)))
        assert of(after).trainable


@pytest.mark.slow
def test_fit_and_evaluate_log_the_number_of_truncated_texts(pretrained, caplog):
    filler = MaskFiller.from_pretrained(pretrained, max_seq_length=8)
    texts = ["a good film", "very " * 6 + "good", "very " * 7]
    filler.fit(texts, validation_data=texts[:2], epochs=2, **FAST)
    filler.evaluate(texts[:2])
    assert [record.getMessage() for record in caplog.records if "trunc" in record.getMessage()] == [
        "1 of 2 validation texts are truncated to max_seq_length=8 tokens",  # They are read once.
        "2 of 3 training texts are truncated to max_seq_length=8 tokens",
        "1 of 2 texts are truncated to max_seq_length=8 tokens",
    ]


def test_masks_of_an_evaluation_depend_on_its_seed_but_not_on_the_batches(filler):
    expected = filler.evaluate(CORPUS)
    assert filler.evaluate(CORPUS, 5) == pytest.approx(expected, abs=1e-5)
    assert filler.evaluate(CORPUS, seed=1) != pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, "top_k=0: expected a whole number of at least 1"),
        ({"top_k": 16}, "top_k=16: expected from 1 to 15, the vocabulary size"),
        (
            {"tokenizer": BertTokenizer(VOCAB)},
            r"tokenizer splits \[MASK\]; expected one with keep_special_tokens",
        ),
    ],
)
def test_settings_that_do_not_match_the_model_are_rejected(pretrained, arguments, message):
    with pytest.raises(InputError, match=message):
        MaskFiller.from_pretrained(pretrained, **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"is_decoder": True}, r"is a left-to-right model \(is_decoder\); MaskFiller expects a"),
        (
            {"architectures": ["BertForSequenceClassification"]},
            "is a BertForSequenceClassification; MaskFiller expects a model for its own task",
        ),
    ],
)
def test_model_of_another_kind_is_rejected(pretrained, edit_json, settings, message, tmp_path):
    shutil.copytree(pretrained, tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", **settings)
    with pytest.raises(InputError, match=message):
        MaskFiller.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.predict((["a"], ["b"])), "texts is a tuple of 2 items; expected a list"),
        (lambda it: it.evaluate([]), r"evaluate\(\) got no texts; expected at least one"),
        (lambda it: it.evaluate(["", " "]), "the texts have no tokens that can be masked"),
        (lambda it: it.fit(["a"], validation_data="a"), "validation_data is 'a', a str; expected"),
        (lambda it: it.fit(["a"], validation_data=[]), "validation_data is empty; expected at"),
    ],
)
def test_invalid_arguments_are_named(filler, call, message):
    with pytest.raises(InputError, match=message):
        call(filler)


# --- exported signatures ---

# Some texts have no mask, and one has a mask beyond the length.
SERVED_TEXTS = [*TEXTS, "", "[mask] a[MASK]b", *["it [MASK]"] * 5]


def signatures_of(filler):
    return ServedFillMask(Network(filler.model), filler.processor).signatures()


def test_signatures_give_the_padded_answers_of_predict(filler, monkeypatch):
    expected = filler.predict(SERVED_TEXTS)
    signatures = signatures_of(filler)
    monkeypatch.setattr(fill_mask, "_MASKS_AT_ONCE_SERVED", 4)
    in_chunks = signatures_of(filler)["serving_default"]
    texts, ids = tf.constant(SERVED_TEXTS), padded_rows(filler.tokenizer, 16, SERVED_TEXTS)
    padding = {"tokens": b"", "token_ids": -1, "scores": 0}
    for answer in (
        signatures["serving_default"](texts),
        signatures["token_ids"](**ids),
        in_chunks(texts),
    ):
        answer = {name: value.numpy() for name, value in answer.items()}
        actual = {"truncated": expected["truncated"]}
        for name, padded in padding.items():
            counts = list(map(len, expected[name]))
            assert answer[name].shape == (len(SERVED_TEXTS), max(counts), 15)
            rows = list(zip(answer[name], counts, strict=True))
            assert {value for row, count in rows for value in row[count:].ravel()} <= {padded}
            actual[name] = [row[:count] for row, count in rows]
        actual["tokens"] = [row.astype(str) for row in actual["tokens"]]
        assert_same(actual, expected)
    assert signatures["serving_default"](texts)["truncated"].numpy().tolist() == [
        *expected["truncated"]
    ]
