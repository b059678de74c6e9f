"""Decoding: the best spans as texts of the context, n-best lists and null odds."""

import numpy as np
import pytest

from keras_bert.tasks.question_answering.decoding import (
    NO_CANDIDATE,
    decode,
    n_best_of,
    null_odds_of,
    predictions_of,
)
from keras_bert.tasks.question_answering.questions import load_questions
from keras_bert.tasks.question_answering.windows import make_windows, max_context, training_examples

TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."


def logits(windows, **wanted):
    """Makes logits of 0 with some higher: piece's place in all windows -> value."""
    made = {}
    for name in ("start", "end"):
        made[name] = np.zeros([len(windows.examples.input_ids)], np.float32)
        for place, value in wanted.get(name, {}).items():
            made[name][place] = value
    return made["start"], made["end"]


def test_an_answer_is_a_slice_of_the_original_text(ask, tokenizer):
    question = ask(TEXT, answer="Norse\nleader (911)")
    windows = make_windows([question], tokenizer)
    labels = training_examples(windows, [question]).labels
    start, end = logits(
        windows, start={labels["start_positions"][0]: 9}, end={labels["end_positions"][0]: 9}
    )
    decoded = decode([question], windows, start, end)
    # The label ends at the bracket, which is a piece of its own.
    assert predictions_of([question], decoded, None) == {"q0": "Norse\nleader (911)"}


def brute_force(questions, windows, start, end, n_best_size, max_answer_length):
    """Tries every span, one after the other."""
    allowed = max_context(windows)
    found = {question.id: [] for question in questions}
    for window, of in enumerate(windows.question):
        base = windows.examples.starts[window] + windows.context_at[window]
        length = windows.context_lengths[window]
        for first in range(length):
            for last in range(first, min(first + max_answer_length, length)):
                if allowed[base + first]:
                    piece = windows.first_piece[window]
                    text = questions[of].context[
                        windows.piece_starts[piece + first] : windows.piece_ends[piece + last]
                    ]
                    score = float(start[base + first]) + float(end[base + last])
                    found[questions[of].id].append((score, text))
    best = {}
    for name, spans in found.items():
        texts = {}
        for score, text in sorted(spans, key=lambda span: -span[0]):
            texts.setdefault(text, score)
        best[name] = list(texts.items())[:n_best_size]
    return best


def test_the_best_spans_are_those_of_trying_every_one(ask, tokenizer):
    questions = [ask(TEXT), ask("king " * 40, name="q1"), ask("Rollo", name="q2")]
    windows = make_windows(questions, tokenizer, 24, 4, 7)
    start, end = np.random.default_rng(0).normal(size=[2, len(windows.examples.input_ids)])
    decoded = decode(questions, windows, start, end, 5, 6, chunk=3)
    found = {
        question.id: [(c.text, pytest.approx(c.score)) for c in each.candidates]
        for question, each in zip(questions, decoded, strict=True)
    }
    assert found == brute_force(questions, windows, start, end, 5, 6)


def test_one_text_counts_once(ask, tokenizer):
    windows = make_windows([ask(TEXT)], tokenizer)
    places = [
        i for i, id in enumerate(windows.examples.input_ids) if tokenizer.vocab[id] == "rollo"
    ]
    values = dict(zip(places, [5.0, 7.0], strict=True))
    decoded = decode([ask(TEXT)], windows, *logits(windows, start=values, end=values))
    texts = [candidate.text for candidate in decoded[0].candidates]
    assert texts[0] == "Rollo"
    assert len(set(texts)) == len(texts) == 20
    assert decoded[0].candidates[0].score == 14.0


def test_a_span_has_at_most_so_many_pieces_and_never_ends_before_it_starts(ask, tokenizer):
    question = ask("the norse leader was rollo")
    windows = make_windows([question], tokenizer)
    start, end = logits(windows, start={4: 9, 7: 3}, end={5: 1, 6: 5, 4: 0.5})
    assert decode([question], windows, start, end, 20, 2)[0].best_text == "the norse"
    assert decode([question], windows, start, end, 20, 3)[0].best_text == "the norse leader"


def test_pieces_of_the_question_are_no_answers(ask, tokenizer):
    question = ask("king charles", "rollo ?")
    windows = make_windows([question], tokenizer)
    start, end = logits(windows, start={0: 9, 1: 9, 3: 9}, end={0: 9, 2: 9, 6: 9})
    texts = {candidate.text for candidate in decode([question], windows, start, end)[0].candidates}
    assert texts == {"king", "charles", "king charles"}


def test_no_answer_scores_as_the_window_that_likes_it_least(ask, tokenizer):
    question = ask("king " * 20)
    windows = make_windows([question], tokenizer, 16, 4, 8)
    first, second, *_ = windows.examples.starts
    start, end = logits(windows, start={first: 4, second: 1, first + 5: 2}, end={first: 3})
    start[windows.examples.starts[2:-1]] = 6
    decoded = decode([question], windows, start, end)
    assert decoded[0].null.score == 1.0
    assert null_odds_of([question], decoded) == {"q0": 1.0 - 2.0}
    assert predictions_of([question], decoded, -1.0) == {"q0": "king"}  # not above it
    assert predictions_of([question], decoded, -1.5) == {"q0": ""}
    assert predictions_of([question], decoded, None) == {"q0": "king"}


def test_a_context_without_pieces_is_answered_with_nothing(ask, tokenizer):
    questions = [ask("\u200b \u200b"), ask("rollo", name="q1")]
    windows = make_windows(questions, tokenizer)
    decoded = decode(questions, windows, *logits(windows))
    assert predictions_of(questions, decoded, None) == {"q0": "", "q1": "rollo"}
    assert null_odds_of(questions, decoded)["q0"] == NO_CANDIDATE
    assert [entry["text"] for entry in n_best_of(questions, decoded, False)["q0"]] == [""]


def test_the_n_best_list_has_probabilities_and_in_v2_the_empty_answer(ask, tokenizer):
    question = ask("rollo")
    windows = make_windows([question], tokenizer)
    start, end = logits(windows, start={0: 1.0, 4: 3.0}, end={4: -1.0})
    decoded = decode([question], windows, start, end)
    best, null = n_best_of([question], decoded, True)["q0"]
    assert (best["text"], best["start_logit"], best["end_logit"]) == ("rollo", 3.0, -1.0)
    assert null["text"] == ""
    assert best["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + np.exp(1)))
    assert best["probability"] + null["probability"] == pytest.approx(1)
    assert [e["text"] for e in n_best_of([question], decoded, False)["q0"]] == ["rollo"]


@pytest.fixture(scope="module")
def chinese(shared_data):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / "xquad.zh.json")
    vocab = shared_data / "vocab" / "bert-base-chinese" / "vocab.txt"
    return questions, make_windows(questions, BertTokenizer(vocab))


def test_right_logits_give_chinese_answers_in_their_own_characters(chinese):
    questions, windows = chinese
    examples = training_examples(windows, questions)
    start, end = (np.zeros([len(examples.input_ids)]) for _ in range(2))
    for name, values in (("start", start), ("end", end)):
        positions = examples.labels[f"{name}_positions"]
        known = positions > 0
        values[examples.starts[:-1][known] + positions[known]] = 5
    predictions = predictions_of(questions, decode(questions, windows, start, end), None)
    same = sum(predictions[q.id] == q.answers[0].text.strip() for q in questions)
    assert same >= 0.97 * len(questions)
    assert all(predictions[question.id] in question.context for question in questions)
