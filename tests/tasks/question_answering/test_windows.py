"""Windows over long contexts: their pieces, their spans, and which one speaks for a piece."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.questions import load_questions
from keras_bert.tasks.question_answering.windows import make_windows, max_context, training_examples
from keras_bert.training import progress

LONG = "rollo was the norse leader who swore fealty to king charles in the year 911"  # 17 pieces


def window_words(windows, vocab):
    return [
        " ".join(vocab[i] for i in row) for row in windows.examples.rows(windows.examples.input_ids)
    ]


def test_a_long_context_is_read_in_overlapping_windows(ask, tokenizer, vocab):
    windows = make_windows([ask(LONG)], tokenizer, 13, 4, 4)
    assert window_words(windows, vocab) == [
        "[CLS] who ? [SEP] rollo was the norse leader who swore fealty [SEP]",
        "[CLS] who ? [SEP] leader who swore fealty to king charles in [SEP]",
        "[CLS] who ? [SEP] to king charles in the year 9 ##1 [SEP]",
        "[CLS] who ? [SEP] the year 9 ##1 ##1 [SEP]",
    ]
    assert list(windows.examples.segment_ids[:13]) == [0] * 4 + [1] * 9
    assert list(windows.question) == [0] * 4


def test_a_context_that_fits_is_one_window(ask, tokenizer):
    windows = make_windows([ask(LONG)], tokenizer, 4 + 17 + 1, 4, 1)
    assert list(windows.examples.starts) == [0, 22]


def test_windows_never_leave_a_gap_where_the_stride_is_longer(ask, tokenizer, vocab):
    windows = make_windows([ask(LONG)], tokenizer, 13, 4, 100)
    parts = [row.split(" [SEP] ")[1].removesuffix(" [SEP]") for row in window_words(windows, vocab)]
    assert " ".join(parts) == LONG.replace("911", "9 ##1 ##1")


def test_a_question_keeps_its_first_pieces(ask, tokenizer, vocab):
    windows = make_windows([ask("rollo", "when was the king ?")], tokenizer, 384, 3)
    assert window_words(windows, vocab) == ["[CLS] when was the [SEP] rollo [SEP]"]


def test_a_window_must_have_room_for_the_context(ask, tokenizer):
    with pytest.raises(InputError, match="--max_seq_length=67: expected at least 68"):
        make_windows([ask(LONG)], tokenizer, 67, 64)


def test_cutting_many_texts_shows_how_far_it_is(ask, tokenizer, monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level("INFO", "absl"):
        make_windows([ask(LONG)], tokenizer)
    assert caplog.messages[-1].startswith("tokenizing: 2/2 texts, ")  # a question and a context


def test_an_answer_is_labelled_where_a_window_holds_all_of_it(ask, tokenizer):
    question = ask(LONG, answer="fealty to king")
    examples = training_examples(make_windows([question], tokenizer, 13, 4, 4), [question])
    assert list(examples.labels["start_positions"]) == [0, 7, 0, 0]
    assert list(examples.labels["end_positions"]) == [0, 9, 0, 0]


def test_an_impossible_question_is_taught_the_first_place(ask, tokenizer):
    question = ask(LONG)
    examples = training_examples(make_windows([question], tokenizer, 13, 4, 4), [question])
    assert not examples.labels["start_positions"].any()


def test_answers_are_tightened_to_their_pieces(ask, tokenizer, vocab):
    question = ask("the king (911-933) swore", answer="911")
    windows = make_windows([question], tokenizer)
    labels = training_examples(windows, [question]).labels
    span = slice(labels["start_positions"][0], labels["end_positions"][0] + 1)
    assert [vocab[i] for i in windows.examples.input_ids[span]] == ["9", "##1", "##1"]


def test_max_context_is_the_smaller_side_and_a_hundredth_of_the_length(ask, tokenizer):
    windows = make_windows([ask(LONG), ask(LONG, name="q1")], tokenizer, 13, 4, 4)
    shown = max_context(windows)
    marks = ["".join("01"[int(mark)] for mark in row[4:-1]) for row in windows.examples.rows(shown)]
    # Each piece once. Piece 6 has 1 on its right in window 0, 2 on its left in window 1.
    assert marks == ["11111100", "00111100", "00111100", "00111"] * 2


def expected_owner(windows, question):
    """Does by its definition, piece by piece, what max_context does on arrays."""
    mine = np.flatnonzero(windows.question == question)
    begin, end = windows.question_pieces[question]
    for piece in range(begin, end):
        scores = []
        for window in mine:
            place = piece - windows.first_piece[window]
            length = windows.context_lengths[window]
            if 0 <= place < length:
                scores.append((min(place, length - 1 - place) + 0.01 * length, -window))
        yield -max(scores)[1]


@pytest.fixture(scope="module")
def english(shared_data):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / "xquad.en.json")[:300]
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    return questions, make_windows(questions, BertTokenizer(vocab), 128, 32, 40)


def test_max_context_on_real_text_is_that_of_the_definition(english):
    _, windows = english
    rows = windows.examples.rows(max_context(windows))
    shown = [
        set(np.flatnonzero(row) - at) for row, at in zip(rows, windows.context_at, strict=True)
    ]
    for question in range(0, 300, 7):
        for place, owner in enumerate(expected_owner(windows, question)):
            piece = windows.question_pieces[question, 0] + place
            assert piece - windows.first_piece[owner] in shown[owner]
    assert sum(map(len, shown)) == np.diff(windows.question_pieces).sum()


@pytest.mark.parametrize(
    ("language", "vocabulary", "lower"),
    [
        ("en", "bert-base-uncased", True),
        ("de", "bert-base-multilingual-cased", False),
        ("zh", "bert-base-chinese", True),
    ],
)
def test_labelled_pieces_give_the_answer_back_in_every_language(
    shared_data, language, vocabulary, lower
):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / f"xquad.{language}.json")
    tokenizer = BertTokenizer(shared_data / "vocab" / vocabulary / "vocab.txt", lower)
    windows = make_windows(questions, tokenizer)
    labels = training_examples(windows, questions).labels
    same = set()
    for window in np.flatnonzero(labels["start_positions"]):
        question = questions[windows.question[window]]
        piece = windows.first_piece[window] - windows.context_at[window]
        start = windows.piece_starts[piece + labels["start_positions"][window]]
        end = windows.piece_ends[piece + labels["end_positions"][window]]
        if question.context[start:end] == question.answers[0].text.strip():
            same.add(question.id)
    # The rest ends within a word ("Methode" of "Methoden"), which pieces may not show.
    assert len(same) >= 0.97 * len(questions)


def test_a_text_that_is_no_utf_8_keeps_its_places(ask, tokenizer, vocab):
    question = ask("rollo \ud800 swore ½ fealty", answer="fealty")  # JSON can hold \ud800
    windows = make_windows([question], tokenizer)
    labels = training_examples(windows, [question]).labels
    assert vocab[windows.examples.input_ids[labels["start_positions"][0]]] == "fealty"
