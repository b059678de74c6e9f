"""Served question answering: the answers of run_squad, from raw strings, in TensorFlow ops."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving.question_answering import AnswerSettings, ServedQuestionAnswering
from keras_bert.serving.windows import make_windows as served_windows
from keras_bert.serving.windows import max_context as served_max_context
from keras_bert.tasks.question_answering.decoding import decode
from keras_bert.tasks.question_answering.questions import Question, load_questions
from keras_bert.tasks.question_answering.windows import make_windows, max_context
from keras_bert.text.tokenizer import BertTokenizer

WORDS = "the norse leader was rollo who swore fealty to king charles in year what when ?"
TEXT = "Rollo, the  Norse\nleader (911), swore fealty to King Charles; Rollo swore."
SMALL = AnswerSettings(24, 4, 7, 5, 6)


@pytest.fixture(scope="module")
def tokenizer():
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,()-;"
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##é", "王", *pieces]
    )


class FixedNetwork:
    """Logits that depend on a piece, its segment, its place and its window's length alone."""

    config = SimpleNamespace(max_position_embeddings=512)

    def __init__(self, null=0.0):
        self.values = np.random.default_rng(3).normal(size=[2, 99_991]).astype(np.float32)
        self.null = null

    def __call__(self, input_ids, segment_ids):
        lengths = input_ids.row_lengths()
        places = tf.ragged.range(lengths).values
        length = tf.gather(lengths, input_ids.value_rowids())
        number = 7919 * tf.cast(input_ids.values, tf.int64) + 104_729 * places + 31 * length
        number += 13 * tf.cast(segment_ids.values, tf.int64)
        return {
            f"{end}_logits": tf.gather(values, number % values.size)
            + tf.where(places == 0, self.null, 0.0)
            for end, values in zip(("start", "end"), self.values, strict=True)
        }


class KnownNetwork:
    """Logits of 0 but those given: (window, place) -> value."""

    config = SimpleNamespace(max_position_embeddings=512)

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
    """A function: lists of texts in, arrays out."""
    answering = ServedQuestionAnswering(network, tokenizer, settings)
    run = answering.signatures()["serving_default"] if graph else answering.of_texts

    def ask(questions, contexts):
        outputs = run(tf.constant(questions, tf.string), tf.constant(contexts, tf.string))
        return {name: value.numpy() for name, value in outputs.items()}

    return ask


def expected(questions, tokenizer, network, settings):
    """What run_squad decodes from the same logits."""
    windows = make_windows(
        questions,
        tokenizer,
        settings.max_seq_length,
        settings.max_query_length,
        settings.doc_stride,
    )
    examples = windows.examples
    logits = network(
        *(
            tf.RaggedTensor.from_row_splits(values, examples.starts)
            for values in (examples.input_ids, examples.segment_ids)
        )
    )
    return decode(
        questions,
        windows,
        logits["start_logits"].numpy(),
        logits["end_logits"].numpy(),
        settings.n_best_size,
        settings.max_answer_length,
    )


def check_same(outputs, questions, decoded, settings):
    """Compares served answers with run_squad's: texts and places exactly, scores as float32."""
    threshold = settings.null_score_diff_threshold if settings.version_2 else None
    answers = [text.decode() for text in outputs["answer"]]
    assert answers == [each.answer(threshold) for each in decoded]
    np.testing.assert_array_equal(
        outputs["null_score"], np.array([each.null.score for each in decoded], np.float32)
    )
    for i, (question, each) in enumerate(zip(questions, decoded, strict=True)):
        candidates = list(each.candidates)
        if candidates:
            assert outputs["score"][i] == np.float32(candidates[0].score)
        if settings.version_2 or not candidates:
            candidates = sorted([*candidates, each.null], key=lambda c: -c.score)
        n, nothing = len(candidates), outputs["nbest_starts"].shape[1] - len(candidates)
        best = [text.decode() for text in outputs["nbest_answers"][i]]
        assert best == [c.text for c in candidates] + [""] * nothing
        for name in ("start_logit", "end_logit"):
            values = [getattr(c, name) for c in candidates] + [0] * nothing
            np.testing.assert_array_equal(outputs[f"nbest_{name}s"][i], np.array(values, "f"))
        scores = np.array([c.score for c in candidates])
        shares = np.exp(scores - scores.max())
        np.testing.assert_allclose(
            outputs["nbest_probabilities"][i, :n], shares / shares.sum(), rtol=1e-6
        )
        assert not outputs["nbest_probabilities"][i, n:].any()
        # The places cut the text out of the context.
        places = [*zip(outputs["nbest_starts"][i], outputs["nbest_ends"][i], strict=True)]
        for (start, end), text in zip(
            [*places, (outputs["start"][i], outputs["end"][i])], [*best, answers[i]], strict=True
        ):
            assert text == (question.context[start:end] if start >= 0 else "")
            assert (start == -1) == (end == -1) == (text == "")


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


@pytest.mark.parametrize("sizes", [(24, 4, 7), (13, 4, 100), (384, 64, 128), (9, 5, 1)])
def test_windows_and_their_max_context_are_those_of_run_squad(tokenizer, sizes):
    theirs = make_windows(MIXED, tokenizer, *sizes)
    questions, contexts = ([getattr(q, name) for q in MIXED] for name in ("text", "context"))
    ours = served_windows(tf.constant(questions), tf.constant(contexts), tokenizer, *sizes)
    for name in ("input_ids", "segment_ids"):
        np.testing.assert_array_equal(getattr(ours, name).values, getattr(theirs.examples, name))
    np.testing.assert_array_equal(ours.input_ids.row_splits, theirs.examples.starts)
    for name in ("question", "context_at", "context_lengths"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    marks = ours.input_ids.with_values(
        tf.boolean_mask(served_max_context(ours), tf.sequence_mask(ours.lengths))
    )
    np.testing.assert_array_equal(marks.values, max_context(theirs))


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
def test_answers_and_candidates_are_those_of_run_squad(tokenizer, settings):
    network = FixedNetwork()
    outputs = served(network, tokenizer, settings)(
        [q.text for q in MIXED], [q.context for q in MIXED]
    )
    decoded = expected(MIXED, tokenizer, network, settings)
    check_same(outputs, MIXED, decoded, settings)
    if settings.version_2:  # Both sides of the threshold are met.
        assert {text == b"" for text in outputs["answer"]} == {True, False}


def test_an_answer_says_its_characters_and_its_score(tokenizer):
    # [CLS] who ? [SEP] [UNK] 王 ( rollo , the norse )
    network = KnownNetwork({(0, 7): 9.0, (0, 0): 1.0}, {(0, 10): 4.0, (0, 0): 1.5})
    outputs = served(network, tokenizer)(["Who?"], ["Äß王 (Rollo, the  Norse)"])
    assert outputs["answer"][0].decode() == "Rollo, the  Norse"
    assert (outputs["start"][0], outputs["end"][0]) == (5, 22)
    assert (outputs["score"][0], outputs["null_score"][0]) == (13.0, 2.5)


def test_v2_is_silent_above_the_threshold_and_says_the_best_text_at_it(tokenizer):
    network = KnownNetwork(start={(0, 3): 2.0, (0, 0): 3.5})
    for threshold, answer in ((1.5, b"rollo"), (1.25, b"")):
        settings = AnswerSettings(version_2=True, null_score_diff_threshold=threshold)
        outputs = served(network, tokenizer, settings)(["who"], ["rollo swore"])
        assert outputs["answer"][0] == answer
        assert (outputs["start"][0], outputs["end"][0]) == ((0, 5) if answer else (-1, -1))
        assert (outputs["score"][0], outputs["null_score"][0]) == (2.0, 3.5)
        # No answer is a candidate, beside as many texts as are asked for.
        assert outputs["nbest_answers"].shape == (1, 21)
        assert [*outputs["nbest_answers"][0, :2]] == [b"", b"rollo"]


def test_a_context_without_words_is_answered_with_nothing(tokenizer):
    outputs = served(KnownNetwork(), tokenizer, SMALL)(["who ?"] * 2, ["", "\u200b"])
    assert [*outputs["answer"]] == [b"", b""]
    assert [*outputs["start"]] == [-1, -1]
    assert [*outputs["score"]] == [np.finfo(np.float32).min] * 2
    np.testing.assert_array_equal(outputs["nbest_probabilities"], [[1, 0, 0, 0, 0]] * 2)


def test_no_question_gives_no_answer(tokenizer):
    for settings in (SMALL, AnswerSettings(24, 4, 7, 5, 6, True)):
        outputs = served(FixedNetwork(), tokenizer, settings)([], [])
        assert {name: len(values) for name, values in outputs.items()} == dict.fromkeys(outputs, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_questions_without_a_context_are_refused(tokenizer, count):
    ask = served(FixedNetwork(), tokenizer, SMALL, graph=True)
    message = rf"context and question: expected one shape, got.*{count}.*2"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask(["who ?"] * 2, ["rollo"] * count)


def test_bytes_that_are_not_utf_8_are_kept_and_count_as_characters(tokenizer):
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


def test_an_answer_does_not_depend_on_what_is_asked_beside_it(tokenizer):
    ask = served(FixedNetwork(), tokenizer, SMALL)
    together = ask([q.text for q in MIXED], [q.context for q in MIXED])
    for i, question in enumerate(MIXED):
        alone = ask([question.text], [question.context])
        for name, values in together.items():
            np.testing.assert_array_equal(values[i], alone[name][0], err_msg=name)


def test_a_context_of_a_megabyte_is_read_to_its_end(tokenizer):
    context = "rollo swore fealty to the king in " * 30_000
    size = len(context) - 40
    context = context[:size] + " charles " + context[size:]
    charles = tokenizer.vocab.index("charles")

    class Knows(KnownNetwork):
        def __call__(self, input_ids, segment_ids):
            found = tf.cast(input_ids.values == charles, tf.float32)
            return {"start_logits": found, "end_logits": found}

    outputs = served(Knows(), tokenizer, graph=True)(["who ?" * 50_000], [context])
    assert outputs["answer"][0] == b"charles"
    assert outputs["start"][0] == context.index("charles")


def test_token_ids_give_the_logits_of_windows_that_a_client_cut(tokenizer):
    network = FixedNetwork()
    run = ServedQuestionAnswering(network, tokenizer, SMALL).signatures()["token_ids"]
    windows = served_windows(tf.constant(["who ?"]), tf.constant([TEXT]), tokenizer, 24, 4, 7)
    padded = [windows.input_ids, tf.ones_like(windows.input_ids), windows.segment_ids]
    outputs = run(*(rows.to_tensor() for rows in padded))
    expected = network(windows.input_ids, windows.segment_ids)
    for name, values in expected.items():
        rows = windows.input_ids.with_values(values).to_tensor()
        np.testing.assert_array_equal(outputs[name], rows)
    assert outputs.keys() == expected.keys()


def test_settings_that_cannot_be_are_refused(tokenizer):
    for settings, message in (
        ({"n_best_size": 0}, "--n_best_size=0: expected at least 1"),
        ({"max_seq_length": 67}, "--max_seq_length=67: expected at least 68"),
        ({"null_score_diff_threshold": float("nan")}, "threshold=nan: expected a finite"),
    ):
        with pytest.raises(InputError, match=message):
            AnswerSettings(**settings)
    with pytest.raises(InputError, match="--max_seq_length=513: expected at most the model's 512"):
        ServedQuestionAnswering(KnownNetwork(), tokenizer, AnswerSettings(max_seq_length=513))


@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_real_questions_are_answered_as_by_run_squad(shared_data, language):
    questions = load_questions(shared_data / "squad" / f"xquad.{language}.json")
    vocab = shared_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt"
    tokenizer = BertTokenizer(vocab, do_lower_case=False)
    settings = AnswerSettings(version_2=True)
    network = FixedNetwork(null=3.0)
    outputs = served(network, tokenizer, settings, graph=True)(
        [q.text for q in questions], [q.context for q in questions]
    )
    assert len(questions) == 1190
    check_same(outputs, questions, expected(questions, tokenizer, network, settings), settings)
    assert {text == b"" for text in outputs["answer"]} == {True, False}
