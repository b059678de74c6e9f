"""Tests predictions: the best spans as texts of the context, n-best lists and null odds."""

import hashlib
import json

import numpy as np
import pytest

from keras_bert.tasks.prepared import decoded, gathered, prepare
from keras_bert.tasks.question_answering.labels import prepare_questions, training_examples
from keras_bert.tasks.question_answering.predictions import Predictions
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.questions import load_questions
from keras_bert.tasks.question_answering.settings import AnswerSettings
from tests.tasks.question_answering.reference import FixedLogits

TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."


def logits(examples, **wanted):
    """Returns logits of 0 except the given values by position among all tokens."""
    made = {}
    for end in ("start", "end"):
        made[f"{end}_logits"] = np.zeros([len(examples.input_ids)], np.float32)
        for place, value in wanted.get(end, {}).items():
            made[f"{end}_logits"][place] = value
    return made


def answered(questions, tokenizer, make_logits=logits, settings=AnswerSettings(), chunk=1024):  # noqa: B008
    """Decodes the logits that `make_logits(examples)` returns."""
    processor = SpanProcessor(tokenizer, settings)
    columns = [[q.text for q in questions], [q.context for q in questions]]
    prepared = prepare(processor.preprocess, columns, chunk)
    outputs = make_logits(prepared.examples)
    return Predictions(questions, gathered(list(decoded(processor, prepared, outputs))))


def given(**wanted):
    return lambda examples: logits(examples, **wanted)


def test_answer_is_a_slice_of_the_original_text(ask, tokenizer):
    question = ask(TEXT, answer="Norse\nleader (911)")
    prepared = prepare_questions(SpanProcessor(tokenizer, AnswerSettings()), [question])
    labels = training_examples(prepared, [question]).labels
    known = {labels["start_positions"][0]: 9}, {labels["end_positions"][0]: 9}
    found = answered([question], tokenizer, given(start=known[0], end=known[1]))
    # The label ends at the bracket, which is a separate token.
    assert found.answers(None) == {"q0": "Norse\nleader (911)"}


def test_lone_surrogate_is_kept_in_answers(ask, tokenizer):
    question = ask("\ud800 rollo \ud801 swore")  # JSON can contain them.
    found = answered([question], tokenizer, given(start={4: 9}, end={5: 9}))
    assert found.answers(None) == {"q0": "rollo \ud801 swore"}


def test_questions_are_decoded_equally_in_chunks(ask, tokenizer):
    questions = [ask(TEXT), ask("king " * 40, name="q1"), ask("Rollo", name="q2")]
    settings, network = AnswerSettings(24, 4, 7, 5, 6), FixedLogits()
    complete = answered(questions, tokenizer, network.of_examples, settings)
    some = answered(questions, tokenizer, network.of_examples, settings, chunk=2)
    for name, values in complete.outputs.items():
        np.testing.assert_array_equal(values, some.outputs[name])


def test_repeated_text_is_listed_once(ask, tokenizer):
    def twice(examples):
        places = [i for i, id in enumerate(examples.input_ids) if tokenizer.vocab[id] == "rollo"]
        values = dict(zip(places, [5.0, 7.0], strict=True))
        return logits(examples, start=values, end=values)

    found = answered([ask(TEXT)], tokenizer, twice)
    texts = [candidate["text"] for candidate in found.n_best(False)["q0"]]
    assert texts[0] == "Rollo"
    assert len(set(texts)) == len(texts) == 20
    assert found.outputs["score"][0] == 14.0


def test_span_is_in_order_and_at_most_max_answer_length_tokens(ask, tokenizer):
    known = given(start={4: 9, 7: 3}, end={5: 1, 6: 5, 4: 0.5})
    for length, text in ((2, "the norse"), (3, "the norse leader")):
        settings = AnswerSettings(max_answer_length=length)
        found = answered([ask("the norse leader was rollo")], tokenizer, known, settings)
        assert found.best_texts == {"q0": text}


def test_tokens_of_the_question_are_not_answers(ask, tokenizer):
    known = given(start={0: 9, 1: 9, 3: 9}, end={0: 9, 2: 9, 6: 9})
    found = answered([ask("king charles", "rollo ?")], tokenizer, known)
    texts = {candidate["text"] for candidate in found.n_best(False)["q0"]}
    assert texts == {"king", "charles", "king charles"}


def test_null_score_is_the_lowest_of_all_windows(ask, tokenizer):
    def lowest_in_the_second(examples):
        first, second, *_ = examples.starts
        made = logits(examples, start={first: 4, second: 1, first + 5: 2}, end={first: 3})
        made["start_logits"][examples.starts[2:-1]] = 6
        return made

    settings = AnswerSettings(16, 4, 8, version_2_with_negative=True)
    found = answered([ask("king " * 20)], tokenizer, lowest_in_the_second, settings)
    assert found.outputs["null_score"].tolist() == [1.0]
    assert found.null_odds == {"q0": 1.0 - 2.0}
    assert found.answers(-1.0) == {"q0": "king"}  # not above it
    assert found.answers(-1.5) == {"q0": ""}
    assert found.answers(None) == {"q0": "king"}


@pytest.mark.parametrize("version_2", [False, True])
def test_context_without_tokens_gives_an_empty_answer(ask, tokenizer, version_2):
    questions = [ask("\u200b \u200b"), ask("rollo", name="q1")]
    settings = AnswerSettings(version_2_with_negative=version_2)
    found = answered(questions, tokenizer, settings=settings)
    assert found.answers(None) == {"q0": "", "q1": "rollo"}
    assert found.null_odds["q0"] == 0.0  # The only candidate is "no answer".
    assert [entry["text"] for entry in found.n_best(version_2)["q0"]] == [""]


def test_n_best_list_has_probabilities_and_in_v2_the_empty_answer(ask, tokenizer):
    known = given(start={0: 1.0, 4: 3.0}, end={4: -1.0})
    settings = AnswerSettings(version_2_with_negative=True)
    best, null = answered([ask("rollo")], tokenizer, known, settings).n_best(True)["q0"]
    assert (best["text"], best["start_logit"], best["end_logit"]) == ("rollo", 3.0, -1.0)
    assert null["text"] == ""
    assert best["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + np.exp(1)))
    assert best["probability"] + null["probability"] == pytest.approx(1)
    found = answered([ask("rollo")], tokenizer, known)
    assert [entry["text"] for entry in found.n_best(False)["q0"]] == ["rollo"]


def test_correct_logits_give_chinese_answers_in_original_characters(shared_data):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / "xquad.zh.json")
    tokenizer = BertTokenizer(shared_data / "vocab" / "bert-base-chinese" / "vocab.txt")

    def right(_):
        prepared = prepare_questions(SpanProcessor(tokenizer, AnswerSettings()), questions)
        examples = training_examples(prepared, questions)
        made = logits(examples)
        for end in ("start", "end"):
            positions = examples.labels[f"{end}_positions"]
            known = positions > 0
            made[f"{end}_logits"][examples.starts[:-1][known] + positions[known]] = 5
        return made

    predictions = answered(questions, tokenizer, right).answers(None)
    same = sum(predictions[q.id] == q.answers[0].text.strip() for q in questions)
    assert same >= 0.97 * len(questions)
    assert all(predictions[question.id] in question.context for question in questions)


# Predictions, candidates and null odds of all questions, confirmed by the decoding in reference.py.
GOLDEN = {
    ("xquad.en", 384): "ebd07b7255ee4b98",
    ("xquad.zh", 64): "bc5232dd408e2831",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), GOLDEN)
def test_answers_to_real_questions_equal_the_reference(shared_data, name, length):
    from keras_bert.text.tokenizer import BertTokenizer

    questions = load_questions(shared_data / "squad" / f"{name}.json")
    vocab = shared_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt"
    tokenizer = BertTokenizer(vocab, do_lower_case=False)
    settings = AnswerSettings(384, 64, 128) if length == 384 else AnswerSettings(64, 16, 20)
    found = answered(questions, tokenizer, FixedLogits(null=3.0).of_examples, settings)
    digest = hashlib.sha256()
    digest.update(json.dumps(found.answers(None)).encode())
    digest.update(json.dumps(found.null_odds).encode())
    for question, entries in found.n_best(False).items():
        rows = [[entry["text"], entry["start_logit"], entry["end_logit"]] for entry in entries]
        digest.update(json.dumps([question, rows]).encode())
    assert digest.hexdigest()[:16] == GOLDEN[name, length]
