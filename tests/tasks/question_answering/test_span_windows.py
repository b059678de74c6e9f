"""Windows over long contexts: their tokens, their labels, and which one shows most of a token."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.question_answering.labels import training_examples
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.questions import load_questions
from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.question_answering.span_windows import make_windows, max_context
from keras_bert.training import progress
from tests.tasks.question_answering.reference import owners_of, windows_of

LONG = "rollo was the norse leader who swore fealty to king charles in the year 911"  # 17 pieces


def windows(questions, tokenizer, *sizes):
    """Returns the windows of some questions."""
    texts, contexts = ([getattr(q, name) for q in questions] for name in ("text", "context"))
    settings = AnswerSettings(*sizes)
    return make_windows(tf.constant(texts), tf.constant(contexts), tokenizer, settings)


def words_of(windows, vocab):
    return [" ".join(vocab[i] for i in row) for row in windows.input_ids.to_list()]


def labelled(questions, tokenizer, *sizes):
    return training_examples(SpanProcessor(tokenizer, AnswerSettings(*sizes)), questions)


def test_a_long_context_is_read_in_overlapping_windows(ask, tokenizer, vocab):
    made = windows([ask(LONG)], tokenizer, 13, 4, 4)
    assert words_of(made, vocab) == [
        "[CLS] who ? [SEP] rollo was the norse leader who swore fealty [SEP]",
        "[CLS] who ? [SEP] leader who swore fealty to king charles in [SEP]",
        "[CLS] who ? [SEP] to king charles in the year 9 ##1 [SEP]",
        "[CLS] who ? [SEP] the year 9 ##1 ##1 [SEP]",
    ]
    assert made.segment_ids[0].numpy().tolist() == [0] * 4 + [1] * 9
    assert made.question.numpy().tolist() == [0] * 4


def test_a_context_that_fits_is_one_window(ask, tokenizer):
    made = windows([ask(LONG)], tokenizer, 4 + 17 + 1, 4, 1)
    assert made.input_ids.row_splits.numpy().tolist() == [0, 22]


def test_windows_never_leave_a_gap_where_the_stride_is_longer(ask, tokenizer, vocab):
    made = windows([ask(LONG)], tokenizer, 13, 4, 100)
    parts = [row.split(" [SEP] ")[1].removesuffix(" [SEP]") for row in words_of(made, vocab)]
    assert " ".join(parts) == LONG.replace("911", "9 ##1 ##1")


def test_a_question_keeps_its_first_tokens(ask, tokenizer, vocab):
    made = windows([ask("rollo", "when was the king ?")], tokenizer, 384, 3)
    assert words_of(made, vocab) == ["[CLS] when was the [SEP] rollo [SEP]"]


def test_tokenizing_many_texts_shows_progress(ask, tokenizer, monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level("INFO", "absl"):
        labelled([ask(LONG)], tokenizer)
    assert caplog.messages[-1].startswith("tokenizing: 1/1 texts, ")


def test_an_answer_is_labelled_where_a_window_holds_all_of_it(ask, tokenizer):
    question = ask(LONG, answer="fealty to king")
    examples = labelled([question], tokenizer, 13, 4, 4)
    assert list(examples.labels["start_positions"]) == [0, 7, 0, 0]
    assert list(examples.labels["end_positions"]) == [0, 9, 0, 0]


def test_an_impossible_question_is_taught_the_first_place(ask, tokenizer):
    question = ask(LONG)
    examples = labelled([question], tokenizer, 13, 4, 4)
    assert not examples.labels["start_positions"].any()


def test_answers_are_tightened_to_their_tokens(ask, tokenizer, vocab):
    question = ask("the king (911-933) swore", answer="911")
    examples = labelled([question], tokenizer)
    labels = examples.labels
    span = slice(labels["start_positions"][0], labels["end_positions"][0] + 1)
    assert [vocab[i] for i in examples.input_ids[span]] == ["9", "##1", "##1"]


def marks_of(windows):
    """Returns max_context of each window as a string of 0 and 1, its context tokens only."""
    rows = tf.ragged.boolean_mask(max_context(windows), tf.sequence_mask(windows.lengths))
    return [
        "".join("01"[mark] for mark in row[at:-1])
        for row, at in zip(rows.to_list(), windows.context_at.numpy(), strict=True)
    ]


def test_max_context_is_the_smaller_side_and_a_hundredth_of_the_length(ask, tokenizer):
    # Two questions about one context, each with windows of its own.
    made = windows([ask(LONG), ask(LONG, name="q1")], tokenizer, 13, 4, 4)
    # Each token once. Token 6 has 1 on its right in window 0, 2 on its left in window 1.
    assert marks_of(made) == ["11111100", "00111100", "00111100", "00111"] * 2
    assert made.context.shape == [1]


@pytest.mark.parametrize("sizes", [(128, 32, 40), (384, 64, 128), (61, 20, 300)])
def test_windows_of_real_texts_are_those_of_the_definition(shared_data, sizes):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / "xquad.de.json")[:300:6]
    tokenizer = BertTokenizer(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    made = windows(questions, tokenizer, *sizes)
    expected, _ = windows_of(questions, tokenizer, AnswerSettings(*sizes))
    assert made.input_ids.to_list() == [window.ids for window in expected]
    for name in ("question", "context_at"):
        values = [getattr(window, name) for window in expected]
        assert getattr(made, name).numpy().tolist() == values
    owners = owners_of(expected)
    assert marks_of(made) == [
        "".join(
            "01"[owners[window.question, window.offset + place] == number]
            for place in range(window.length)
        )
        for number, window in enumerate(expected)
    ]


@pytest.mark.parametrize(
    ("language", "vocabulary", "lower"),
    [
        ("en", "bert-base-uncased", True),
        ("de", "bert-base-multilingual-cased", False),
        ("zh", "bert-base-chinese", True),
    ],
)
def test_labelled_tokens_give_the_answer_back_in_every_language(
    shared_data, language, vocabulary, lower
):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / f"xquad.{language}.json")
    tokenizer = BertTokenizer(shared_data / "vocab" / vocabulary / "vocab.txt", lower)
    examples = labelled(questions, tokenizer)
    made = windows(questions, tokenizer)
    labels = examples.labels
    same = set()
    to_token = (made.first_token - made.context_at).numpy()
    starts, ends = (each.values.numpy() for each in (made.token_starts, made.token_ends))
    for window in np.flatnonzero(labels["start_positions"]):
        question = questions[made.question[window]]
        start = starts[to_token[window] + labels["start_positions"][window]]
        end = ends[to_token[window] + labels["end_positions"][window]]
        if question.context.encode()[start:end] == question.answers[0].text.strip().encode():
            same.add(question.id)
    # The rest ends within a word ("Methode" of "Methoden"), which tokens may not show.
    assert len(same) >= 0.97 * len(questions)


def test_a_text_that_is_no_utf_8_keeps_its_places(ask, tokenizer, vocab):
    question = ask("rollo \ud800 swore ½ fealty", answer="fealty")  # JSON can hold \ud800
    examples = labelled([question], tokenizer)
    assert vocab[examples.input_ids[examples.labels["start_positions"][0]]] == "fealty"
