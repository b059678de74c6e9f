"""Predictions from logits: the best spans, n-best lists, null odds; and exported signatures."""

import functools
import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.prepared import decoded, gathered, prepare
from keras_bert.tasks.question_answering.data import AnswerSettings, Question, load_questions
from keras_bert.tasks.question_answering.decoding import Predictions
from keras_bert.tasks.question_answering.processor import (
    SpanProcessor,
    prepare_questions,
    training_examples,
)
from keras_bert.tasks.question_answering.task import ServedQuestionAnswering
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.question_answering.reference import FixedLogits, candidates_of, check_answers

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
    best = {end: {labels[f"{end}_positions"][0]: 9} for end in ("start", "end")}
    # The label ends at the bracket, which is a separate token.
    answers = answered([question], tokenizer, given(**best)).answers(None)
    assert answers == {"q0": "Norse\nleader (911)"}


def test_questions_are_decoded_equally_in_chunks(ask, tokenizer):
    questions = [ask(TEXT), ask("king " * 40, name="q1"), ask("Rollo", name="q2")]
    settings, network = AnswerSettings(24, 4, 7, 5, 6), FixedLogits()
    complete = answered(questions, tokenizer, network.of_examples, settings)
    some = answered(questions, tokenizer, network.of_examples, settings, chunk=2)
    for name, values in complete.outputs.items():
        np.testing.assert_array_equal(values, some.outputs[name])


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


class KnownNetwork:
    """Logits of 0 except the given values by (window, position)."""

    config = BertConfig(vocab_size=100)

    def __init__(self, start=(), end=()):
        self.given = {"start_logits": dict(start), "end_logits": dict(end)}

    def __call__(self, input_ids, segment_ids):
        outputs = {}
        for name, given in self.given.items():
            places = np.array([*given], np.int64).reshape(-1, 2)
            at = tf.gather(input_ids.row_starts(), places[:, 0]) + places[:, 1]
            values = np.array([*given.values()], np.float32)
            outputs[name] = tf.scatter_nd(at[:, None], values, tf.shape(input_ids.values, tf.int64))
        return outputs


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
    network = KnownNetwork(start={(0, 3): 2.0, (0, 0): 3.5})
    for threshold, answer in ((1.5, b"rollo"), (1.25, b"")):
        settings = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        outputs = served(network, served_tokenizer, settings)(["who"], ["rollo swore"])
        assert outputs["answer"][0] == answer
        assert (outputs["start"][0], outputs["end"][0]) == ((0, 5) if answer else (-1, -1))
        assert (outputs["score"][0], outputs["null_score"][0]) == (2.0, 3.5)
        # The empty answer is a candidate, in addition to the requested number of texts.
        assert outputs["nbest_answers"].shape == (1, 21)
        assert [*outputs["nbest_answers"][0, :2]] == [b"", b"rollo"]


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


def test_windows_longer_than_the_model_allows_are_rejected(served_tokenizer):
    processor = SpanProcessor(served_tokenizer, AnswerSettings(max_seq_length=513))
    with pytest.raises(InputError, match="max_seq_length=513: expected at most the model's 512"):
        ServedQuestionAnswering(KnownNetwork(), processor)
