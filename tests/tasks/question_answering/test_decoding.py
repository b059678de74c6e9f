"""Predictions from logits: the best spans, n-best lists, null odds; and exported signatures."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.tasks.prepared import decoded, gathered, prepare
from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.tasks.question_answering.processor import (
    Predictions,
    SpanProcessor,
    labeled,
)
from keras_bert.tasks.question_answering.task import ServedQuestionAnswering
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.question_answering.conftest import prepare_questions
from tests.tasks.question_answering.reference import FixedLogits, candidates_of, check_answers

TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."


def answered(questions, tokenizer, network, settings=AnswerSettings(), chunk=1024):  # noqa: B008
    """Decodes the logits that `network(examples)` returns."""
    processor = SpanProcessor(tokenizer, settings)
    columns = [[q.text for q in questions], [q.context for q in questions]]
    prepared = prepare(processor.preprocess, columns, chunk)
    outputs = network(prepared.examples)
    return Predictions(questions, gathered(list(decoded(processor, prepared, outputs))))


def test_answer_is_a_slice_of_the_original_text(ask, tokenizer):
    question = ask(TEXT, answer="Norse\nleader (911)")
    prepared = prepare_questions(SpanProcessor(tokenizer, AnswerSettings()), [question])
    labels = labeled(prepared, [question]).examples.labels

    def network(examples):
        positions = np.arange(len(examples.input_ids))
        ends = ("start", "end")
        return {f"{e}_logits": 9.0 * (positions == labels[f"{e}_positions"]) for e in ends}

    found = answered([question], tokenizer, network)
    # The label ends at the bracket, which is a separate token.
    assert found.answers(None) == {"q0": "Norse\nleader (911)"}
    best = found.n_best(False)["q0"][0]
    assert (best["text"], best["start_logit"], best["end_logit"]) == (
        *found.best_texts.values(),
        9,
        9,
    )


def test_questions_are_decoded_equally_in_chunks(ask, tokenizer):
    questions = [ask(TEXT), ask("king " * 40, name="q1"), ask("Rollo", name="q2")]
    settings, network = AnswerSettings(24, 4, 7, 5, 6), FixedLogits()
    complete = answered(questions, tokenizer, network.of_examples, settings)
    some = answered(questions, tokenizer, network.of_examples, settings, chunk=2)
    for name, values in complete.outputs.items():
        np.testing.assert_array_equal(values, some.outputs[name])


# --- exported signatures ---

WORDS = "the norse leader was rollo who swore fealty to king charles in year what when ?"
SMALL = AnswerSettings(24, 4, 7, 5, 6)


@pytest.fixture(scope="module")
def served_tokenizer():
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,()-;"
    tokens = [*letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##é", "王", *tokens]
    )


class FixedNetwork(FixedLogits):
    """Returns FixedLogits with the number of positions of a model."""

    config = BertConfig(vocab_size=100)


def served(network, served_tokenizer, settings=AnswerSettings(), *, graph=False):  # noqa: B008
    """Returns a function that takes lists of texts and returns arrays."""
    answering = ServedQuestionAnswering(network, SpanProcessor(served_tokenizer, settings))
    run = (
        answering.signatures()["serving_default"]
        if graph
        else functools.partial(answering.run, "serving_default")
    )

    def ask(questions, contexts):
        outputs = run(tf.constant(questions, tf.string), tf.constant(contexts, tf.string))
        return {name: value.numpy() for name, value in outputs.items()}

    return ask


def expected(questions, served_tokenizer, network, settings):
    """Returns the reference decoding of the same logits."""
    windows = SpanProcessor(served_tokenizer, settings).preprocess(
        tf.constant([q.text for q in questions]), tf.constant([q.context for q in questions])
    )
    logits = network(windows.input_ids, windows.segment_ids)
    return candidates_of(
        questions, served_tokenizer, settings, *(values.numpy() for values in logits.values())
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
def test_answers_and_candidates_equal_exhaustive_search(served_tokenizer, settings):
    network = FixedNetwork()
    outputs = served(network, served_tokenizer, settings)(
        [q.text for q in MIXED], [q.context for q in MIXED]
    )
    check_answers(outputs, MIXED, expected(MIXED, served_tokenizer, network, settings), settings)
    if settings.version_2_with_negative:  # The data cover both sides of the threshold.
        assert {text == b"" for text in outputs["answer"]} == {True, False}


def test_v2_gives_no_answer_above_the_threshold_and_the_best_at_it(served_tokenizer):
    def outputs(threshold):
        settings = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        return served(FixedNetwork(), served_tokenizer, settings)(["who"], ["rollo swore"])

    odds = outputs(0.0)["null_score"][0] - outputs(0.0)["score"][0]
    assert outputs(float(odds) + 1e-5)["answer"][0]
    below = outputs(float(odds) - 1e-5)
    assert (below["answer"][0], below["start"][0], below["end"][0]) == (b"", -1, -1)
    # The empty answer is a candidate, in addition to the requested number of texts.
    assert below["nbest_answers"].shape == (1, 21)
    assert b"" in below["nbest_answers"][0, :2]


def test_empty_batch_gives_no_answers(served_tokenizer):
    for settings in (SMALL, AnswerSettings(24, 4, 7, 5, 6, True)):
        outputs = served(FixedNetwork(), served_tokenizer, settings)([], [])
        assert {name: len(values) for name, values in outputs.items()} == dict.fromkeys(outputs, 0)


def test_invalid_utf_8_bytes_are_kept_and_count_as_characters(served_tokenizer):
    contexts = [
        b"rollo \xff\xc3\xa9\x80 the \xf0\x9f\x98 norse \xed\xa0\x80 leader",
        "Zürich \u0001 王 rollo".encode(),
        b"rol\x00lo \x00 was \xe7\x8e the king \x80",
    ]
    outputs = served(FixedNetwork(), served_tokenizer)(["who ?"] * 3, contexts)
    for i, context in enumerate(contexts):
        text = context.decode("utf-8", "surrogateescape")
        answers = [answer for answer in outputs["nbest_answers"][i] if answer]
        assert len(answers) > 2
        for j, answer in enumerate(answers):
            start, end = outputs["nbest_starts"][i, j], outputs["nbest_ends"][i, j]
            assert answer == text[start:end].encode("utf-8", "surrogateescape")
    assert any(b"\xf0\x9f\x98" in answer for answer in outputs["nbest_answers"][0])


def test_token_ids_give_the_logits_of_windows_made_by_a_client(served_tokenizer):
    network = FixedNetwork()
    processor = SpanProcessor(served_tokenizer, SMALL)
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
    outputs = served(network, served_tokenizer, SMALL)(questions, [TEXT, TEXT, TEXT * 20])
    assert outputs["truncated"].tolist() == [False, True, False]
