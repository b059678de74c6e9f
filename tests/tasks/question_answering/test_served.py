"""Tests that served question answering of raw strings equals the reference decoding."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.questions import Question, load_questions
from keras_bert.tasks.question_answering.served import ServedQuestionAnswering
from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.question_answering.reference import FixedLogits, candidates_of, check_answers

WORDS = "the norse leader was rollo who swore fealty to king charles in year what when ?"
TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."
SMALL = AnswerSettings(24, 4, 7, 5, 6)


@pytest.fixture(scope="module")
def tokenizer():
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
        SMALL,
        AnswerSettings(24, 4, 7, 5, 6, True, -1.0),
        AnswerSettings(24, 4, 7, 1, 1, True, 3.0),
        AnswerSettings(13, 4, 3, 20, 9),
    ],
    ids=["defaults", "small", "v2", "one", "many windows"],
)
def test_answers_and_candidates_equal_exhaustive_search(tokenizer, settings):
    network = FixedNetwork()
    outputs = served(network, tokenizer, settings)(
        [q.text for q in MIXED], [q.context for q in MIXED]
    )
    check_answers(outputs, MIXED, expected(MIXED, tokenizer, network, settings), settings)
    if settings.version_2_with_negative:  # The data cover both sides of the threshold.
        assert {text == b"" for text in outputs["answer"]} == {True, False}


def test_answer_has_its_characters_and_score(tokenizer):
    # [CLS] who ? [SEP] [UNK] 王 ( rollo , the norse )
    network = KnownNetwork({(0, 7): 9.0, (0, 0): 1.0}, {(0, 10): 4.0, (0, 0): 1.5})
    outputs = served(network, tokenizer)(["Who?"], ["Äß王 (Rollo, the  Norse)"])
    assert outputs["answer"][0].decode() == "Rollo, the  Norse"
    assert (outputs["start"][0], outputs["end"][0]) == (5, 22)
    assert (outputs["score"][0], outputs["null_score"][0]) == (13.0, 2.5)


def test_v2_gives_no_answer_above_the_threshold_and_the_best_at_it(tokenizer):
    network = KnownNetwork(start={(0, 3): 2.0, (0, 0): 3.5})
    for threshold, answer in ((1.5, b"rollo"), (1.25, b"")):
        settings = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        outputs = served(network, tokenizer, settings)(["who"], ["rollo swore"])
        assert outputs["answer"][0] == answer
        assert (outputs["start"][0], outputs["end"][0]) == ((0, 5) if answer else (-1, -1))
        assert (outputs["score"][0], outputs["null_score"][0]) == (2.0, 3.5)
        # The empty answer is a candidate, in addition to the requested number of texts.
        assert outputs["nbest_answers"].shape == (1, 21)
        assert [*outputs["nbest_answers"][0, :2]] == [b"", b"rollo"]


def test_context_without_words_gives_an_empty_answer(tokenizer):
    outputs = served(KnownNetwork(), tokenizer, SMALL)(["who ?"] * 2, ["", "\u200b"])
    assert [*outputs["answer"]] == [b"", b""]
    assert [*outputs["start"]] == [-1, -1]
    # The score of "no answer": there is nothing else to score.
    assert [*outputs["score"]] == [*outputs["null_score"]]
    np.testing.assert_array_equal(outputs["nbest_probabilities"], [[1, 0, 0, 0, 0]] * 2)


def test_empty_batch_gives_no_answers(tokenizer):
    for settings in (SMALL, AnswerSettings(24, 4, 7, 5, 6, True)):
        outputs = served(FixedNetwork(), tokenizer, settings)([], [])
        assert {name: len(values) for name, values in outputs.items()} == dict.fromkeys(outputs, 0)


@pytest.mark.slow
def test_questions_without_a_context_are_rejected(tokenizer):
    ask = served(FixedNetwork(), tokenizer, SMALL, graph=True)
    for count in (0, 1, 3):
        message = rf"context and question: expected equal shapes, got.*{count}.*2"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ask(["who ?"] * 2, ["rollo"] * count)


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


@pytest.mark.slow
def test_answer_does_not_depend_on_the_rest_of_the_batch(tokenizer):
    ask = served(FixedNetwork(), tokenizer, SMALL)
    together = ask([q.text for q in MIXED], [q.context for q in MIXED])
    for i, question in enumerate(MIXED):
        alone = ask([question.text], [question.context])
        for name, values in together.items():
            np.testing.assert_array_equal(values[i], alone[name][0], err_msg=name)


@pytest.mark.slow
def test_context_of_1_mb_is_read_to_its_end(tokenizer):
    context = "rollo swore fealty to the king in " * 30_000
    size = len(context) - 40
    context = context[:size] + " charles " + context[size:]
    charles = tokenizer.vocab.index("charles")

    class PredictsAnswer(KnownNetwork):
        def __call__(self, input_ids, segment_ids):
            found = tf.cast(input_ids.values == charles, tf.float32)
            return {"start_logits": found, "end_logits": found}

    outputs = served(PredictsAnswer(), tokenizer, graph=True)(["who ?" * 50_000], [context])
    assert outputs["answer"][0] == b"charles"
    assert outputs["start"][0] == context.index("charles")


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


def test_truncated_questions_are_marked(tokenizer):
    # Four tokens of a question are kept; contexts are split into windows.
    questions = ["who ? who ?", "who ? who ? who", "who ?"]
    outputs = served(FixedNetwork(), tokenizer, SMALL)(questions, [TEXT, TEXT, TEXT * 20])
    assert outputs["truncated"].tolist() == [False, True, False]


def test_windows_longer_than_the_model_allows_are_rejected(tokenizer):
    processor = SpanProcessor(tokenizer, AnswerSettings(max_seq_length=513))
    with pytest.raises(InputError, match="max_seq_length=513: expected at most the model's 512"):
        ServedQuestionAnswering(KnownNetwork(), processor)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_answers_to_real_questions_equal_exhaustive_search(shared_data, language):
    questions = load_questions(shared_data / "squad" / f"xquad.{language}.json")[::40]
    vocab = shared_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt"
    tokenizer = BertTokenizer(vocab, do_lower_case=False)
    settings = AnswerSettings(128, 64, 40, version_2_with_negative=True)
    network = FixedNetwork(null=3.0)
    outputs = served(network, tokenizer, settings, graph=True)(
        [q.text for q in questions], [q.context for q in questions]
    )
    check_answers(outputs, questions, expected(questions, tokenizer, network, settings), settings)
    assert {text == b"" for text in outputs["answer"]} == {True, False}
