"""Predictions from logits: the best spans, n-best lists, null odds; and exported signatures."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.tasks.question_answering.processor import (
    SpanProcessor,
)
from keras_bert.tasks.question_answering.task import ServedQuestionAnswering
from tests.tasks.question_answering.reference import FixedLogits, candidates_of, check_answers

TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."


# --- exported signatures ---

SMALL = AnswerSettings(24, 4, 7, 5, 6)


class FixedNetwork(FixedLogits):
    """Returns FixedLogits with the number of positions of a model."""

    config = BertConfig(vocab_size=100)


def served(network, tokenizer, settings=AnswerSettings(), *, graph=False):  # noqa: B008
    """Returns a function that takes lists of texts and returns arrays."""
    answering = ServedQuestionAnswering(network, SpanProcessor(tokenizer, settings))
    run = (
        answering.signatures()["serving_default"]
        if graph
        else functools.partial(answering.run, "serving_default")
    )

    def ask(questions, contexts):
        outputs = run(tf.constant(questions, tf.string), tf.constant(contexts, tf.string))
        return {name: value.numpy() for name, value in outputs.items()}

    return ask


def expected(questions, tokenizer, network, settings):
    """Returns the reference decoding of the same logits."""
    windows = SpanProcessor(tokenizer, settings).preprocess(
        tf.constant([q.text for q in questions]), tf.constant([q.context for q in questions])
    )
    logits = network(windows.input_ids, windows.segment_ids)
    return candidates_of(
        questions, tokenizer, settings, *(values.numpy() for values in logits.values())
    )


def asked(*pairs):
    return [Question(str(i), text, context, None) for i, (text, context) in enumerate(pairs)]


MIXED = asked(
    ("who ?", TEXT),
    ("when was the leader who swore fealty ?", "king " * 40),
    ("", "rollo"),
    ("who ?", ""),
    ("", ""),
    ("what", "\u200b \u200b"),
    ("王 who", "王王, Ké\u0301 王 was the LEADER " * 7),
    ("who ?", TEXT),
    ("who", " 911" * 60),
)


@pytest.mark.parametrize(
    "settings",
    [
        AnswerSettings(),
        AnswerSettings(24, 4, 7, 5, 6, True, -1.0),
        AnswerSettings(24, 4, 7, 1, 1, True, 3.0),
        AnswerSettings(13, 4, 3, 20, 9),
    ],
    ids=["defaults", "v2", "one", "many windows"],
)
def test_answers_and_candidates_equal_exhaustive_search(tokenizer, settings):
    network = FixedNetwork()
    outputs = served(network, tokenizer, settings)(
        [q.text for q in MIXED], [q.context for q in MIXED]
    )
    check_answers(outputs, MIXED, expected(MIXED, tokenizer, network, settings), settings)
    if settings.version_2_with_negative:  # The data cover both sides of the threshold.
        assert {text == b"" for text in outputs["answer"]} == {True, False}


def test_invalid_utf_8_bytes_are_kept_and_count_as_characters(tokenizer):
    contexts = [
        b"rollo \xff\xc3\xa9\x80 the \xf0\x9f\x98 norse \xed\xa0\x80 leader",
        "Zürich \u0001 王 rollo".encode(),
        b"rol\x00lo \x00 was \xe7\x8e the king \x80",
    ]
    outputs = served(FixedNetwork(), tokenizer)(["who ?"] * 3, contexts)
    for i, context in enumerate(contexts):
        text = context.decode("utf-8", "surrogateescape")
        answers = [answer for answer in outputs["nbest_answers"][i] if answer]
        assert len(answers) > 2
        for j, answer in enumerate(answers):
            start, end = outputs["nbest_starts"][i, j], outputs["nbest_ends"][i, j]
            assert answer == text[start:end].encode("utf-8", "surrogateescape")
    assert any(b"\xf0\x9f\x98" in answer for answer in outputs["nbest_answers"][0])


def test_token_ids_give_the_logits_of_windows_made_by_a_client(tokenizer):
    network = FixedNetwork()
    processor = SpanProcessor(tokenizer, SMALL)
    run = ServedQuestionAnswering(network, processor).signatures()["token_ids"]
    windows = processor.preprocess(tf.constant(["who ?"]), tf.constant([TEXT]))
    padded = [windows.input_ids, tf.ones_like(windows.input_ids), windows.segment_ids]
    outputs = run(*(rows.to_tensor() for rows in padded))
    expected = network(windows.input_ids, windows.segment_ids)
    for name, values in expected.items():
        rows = windows.input_ids.with_values(values).to_tensor()
        np.testing.assert_array_equal(outputs[name], rows)
    assert outputs.keys() == {*expected, "truncated"}
    # Four tokens of a question are kept; contexts are split into windows.
    questions = ["who ? who ?", "who ? who ? who", "who ?"]
    outputs = served(network, tokenizer, SMALL)(questions, [TEXT, TEXT, TEXT * 20])
    assert outputs["truncated"].tolist() == [False, True, False]
