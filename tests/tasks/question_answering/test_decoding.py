"""Predictions from logits: the best spans, n-best lists, null odds; and exported signatures."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.tasks.question_answering.processor import (
    SpanProcessor,
)
from keras_bert.tasks.question_answering.task import ServedQuestionAnswering
from tests.tasks.question_answering.reference import FixedNetwork, candidates_of, check_answers

TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."


# --- exported signatures ---

SMALL = AnswerSettings(24, 4, 7, 5, 6)


def ask(tokenizer, settings, questions, contexts):
    """Returns the outputs of FixedNetwork for lists of texts, as arrays."""
    answering = ServedQuestionAnswering(FixedNetwork(), SpanProcessor(tokenizer, settings))
    columns = (tf.constant(column, tf.string) for column in (questions, contexts))
    outputs = answering.run("serving_default", *columns)
    return {name: value.numpy() for name, value in outputs.items()}


MIXED = [
    ("who ?", TEXT),
    ("when was the leader who swore fealty ?", "king " * 40),
    ("", "rollo"),
    ("who ?", ""),
    ("", ""),
    ("what", "\u200b \u200b"),
    ("王 who", "王王, Ké\u0301 王 was the LEADER " * 7),
    ("who ?", TEXT),
    ("who", " 911" * 60),
]


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
    columns = [*zip(*MIXED, strict=True)]
    outputs = ask(tokenizer, settings, *columns)
    windows = SpanProcessor(tokenizer, settings).preprocess(*map(tf.constant, columns))
    logits = FixedNetwork()(windows.input_ids, windows.segment_ids).values()
    questions = [Question(str(i), *pair, None) for i, pair in enumerate(MIXED)]
    found = candidates_of(questions, tokenizer, settings, *(values.numpy() for values in logits))
    check_answers(outputs, questions, found, settings)
    if settings.version_2_with_negative:  # The data cover both sides of the threshold.
        assert {text == b"" for text in outputs["answer"]} == {True, False}


def test_invalid_utf_8_bytes_are_kept_and_count_as_characters(tokenizer):
    contexts = [
        b"rollo \xff\xc3\xa9\x80 the \xf0\x9f\x98 norse \xed\xa0\x80 leader",
        "Zürich \u0001 王 rollo".encode(),
        b"rol\x00lo \x00 was \xe7\x8e the king \x80",
    ]
    outputs = ask(tokenizer, AnswerSettings(), ["who ?"] * 3, contexts)
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
    outputs = ask(tokenizer, SMALL, questions, [TEXT, TEXT, TEXT * 20])
    assert outputs["truncated"].tolist() == [False, True, False]
