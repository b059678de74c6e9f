"""Tests QuestionAnswerer: prediction, training, saving, exporting, and invalid input."""

import math
import re

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models import BertClassifier, BertEncoder, BertSpanLabeler
from keras_bert.tasks.load import load
from keras_bert.tasks.question_answering.question_answerer import QuestionAnswerer

SMALL = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 8, "n_best_size": 4}
QUESTIONS = ["who swore ?", "when was the leader ?", "who ?", ""]
CONTEXTS = [
    "Rollo the Norse leader swore fealty to King Charles. " * 3,
    "\ud800 Rollo, é, in the year 911",  # A lone surrogate, which JSON can contain.
    "",
    "王 rollo",
]


@pytest.fixture(scope="module")
def make_model(vocab, tmp_path_factory):
    """Returns a function that writes a model directory from a class and sizes."""

    def make(kind=BertSpanLabeler, **sizes):
        defaults = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes = {"max_position_embeddings": 64, "intermediate_size": 32} | defaults | sizes
        config = BertConfig(len(vocab), initializer_range=0.5, **sizes)
        keras.utils.set_random_seed(1)
        folder = tmp_path_factory.mktemp("model") / "model"
        made = kind(config, 2) if kind is BertClassifier else kind(config)
        save_model_directory(folder, made, ModelDescription(config, vocab))
        return folder

    return make


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model()


@pytest.fixture(scope="module")
def answerer(folder):
    return QuestionAnswerer.from_pretrained(folder, **SMALL)


def test_candidates_are_complete_words(answerer):
    contexts = ["Nora Lind founded a museum in 2010, 王林's.", "Straßenbahnhaltestelle, Köln"]
    candidates = answerer.predict(["who ?"] * 2, contexts)["nbest_answers"]
    for context, answers in zip(contexts, candidates, strict=True):
        words = re.findall(r"[王林]|[^\W王林]+|[^\w\s]", context)
        spans = [words[i:j] for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
        joined = {"".join(span) for span in spans}
        assert answers[0]
        assert {answer.replace(" ", "") for answer in answers if answer} <= joined


def test_answers_are_slices_of_the_given_strings(answerer):
    found = answerer.predict(QUESTIONS, CONTEXTS, batch_size=2)
    assert found["nbest_answers"].shape == (4, 4)
    for i, context in enumerate(CONTEXTS):
        start, end = found["start"][i], found["end"][i]
        assert found["answer"][i] == (context[start:end] if start >= 0 else "")
        for text, start, end in zip(
            *(found[f"nbest_{name}"][i] for name in ("answers", "starts", "ends")), strict=True
        ):
            assert text == (context[start:end] if start >= 0 else "")
    assert found["answer"][2] == ""
    assert all(found["answer"][i] for i in (0, 1, 3))
    assert {type(text) for text in found["answer"]} == {str}
    assert found["score"].dtype == np.float32


def test_evaluate_logs_the_number_of_truncated_questions(answerer, caplog):
    limit = answerer.settings.max_query_length
    context = "the cat"
    answer = {"text": context, "start": 0}
    answerer.evaluate(["the " * (limit + 1), "the"], [context] * 2, [answer] * 2)
    assert f"1 of 2 questions are truncated to max_query_length={limit} tokens" in caplog.text


def test_empty_list_of_questions_gives_empty_outputs(answerer):
    found = answerer.predict([], [])
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, 0)
    assert found["nbest_answers"].shape == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("version_2", [False, True])
def test_exported_and_saved_models_give_the_same_answers(answerer, folder, tmp_path, version_2):
    settings = SMALL | {"version_2_with_negative": version_2}
    if version_2:
        settings["null_score_diff_threshold"] = -0.5
    answerer = QuestionAnswerer.from_pretrained(folder, **settings)
    expected = answerer.predict(QUESTIONS, CONTEXTS)
    answerer.save_pretrained(tmp_path / "saved")
    saved = QuestionAnswerer.from_pretrained(tmp_path / "saved")
    assert saved.settings == answerer.settings
    exported = load(answerer.export(tmp_path / "serving" / "1"))
    assert exported.settings == answerer.settings
    for other in (saved, exported):
        found = other.predict(QUESTIONS, CONTEXTS)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            if values.dtype == np.float32:
                np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found[name], values, err_msg=name)


def memorizable_questions(version_2):
    """Returns questions that a tiny model can memorize."""
    names = ["rollo", "charles", "leader", "king"]
    questions = ["who swore ?", "who was king ?"]
    asked, contexts, answers = [], [], []
    for name in names:
        context = f"the year {name} swore fealty in the year 911"
        asked += questions[: 1 + version_2]
        contexts += [context] * (1 + version_2)
        answers += [{"text": name, "start": context.index(name)}] + [None] * version_2
    return asked, contexts, answers


@pytest.mark.slow
@pytest.mark.parametrize("version_2", [False, True])
def test_fit_learns_answers_and_reports_their_scores(make_model, version_2):
    start = make_model(
        BertEncoder, hidden_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    answerer = QuestionAnswerer.from_pretrained(start, **SMALL, version_2_with_negative=version_2)
    assert answerer.untrained
    asked, contexts, answers = memorizable_questions(version_2)
    history = answerer.fit(
        asked,
        contexts,
        answers,
        validation_data=((asked, contexts), answers),
        epochs=25,
        batch_size=4,
        learning_rate=5e-3,
        seed=0,
        verbose=0,
    ).history
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert history["val_f1"][-1] == 100.0
    assert not answerer.untrained
    scores = answerer.evaluate(asked, contexts, [[a] if a else a for a in answers])
    assert scores["exact"] == scores["f1"] == 100.0
    assert ("NoAns_f1" in scores) == version_2
    found = answerer.predict(asked, contexts)
    assert found["answer"].tolist() == [a["text"] if a else "" for a in answers]


def test_loss_of_fit_ignores_padding(answerer):
    from keras_bert.tasks.losses import span_loss
    from keras_bert.tasks.question_answering.labels import span_targets

    batch = {
        "input_mask": np.array([[1, 1, 1, 0]]),
        "start_positions": np.array([1]),
        "end_positions": np.array([2]),
    }
    targets = span_targets(batch)
    loss = span_loss(targets["start_logits"], np.array([[0.0, 0.0, 0.0, 9.0]], np.float32))
    np.testing.assert_allclose(loss, [0.5 * math.log(3)], rtol=1e-6)


TEXT = "rollo swore"
GOOD = {"text": "rollo", "start": 0}


@pytest.mark.parametrize(
    ("questions", "contexts", "message"),
    [
        ("who ?", [TEXT], r"questions is 'who \?', a str; expected a list of strings"),
        (["who ?"], TEXT, "contexts is 'rollo swore', a str; expected a list of strings"),
        (["who ?", 3], [TEXT] * 2, r"questions\[1\] is 3, a int; expected a string"),
        (["who ?"] * 2, [TEXT], "questions has 2 items, contexts has 1 items; expected lists of"),
    ],
)
def test_invalid_texts_are_rejected(answerer, questions, contexts, message):
    with pytest.raises(InputError, match=message):
        answerer.predict(questions, contexts)
    with pytest.raises(InputError, match=message):
        answerer.evaluate(questions, contexts, [GOOD])
    with pytest.raises(InputError, match=message):
        answerer.fit(questions, contexts, [GOOD])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "questions has 1 items, answers has 0 items"),
        ("rollo", "answers is 'rollo', a str; expected a list of answers"),
        (["rollo"], r"answers\[0\] is 'rollo', a str; expected a list of answers"),
        ([{"text": "rollo"}], r'answers\[0\] is .*; expected {"text": str, "start": int}'),
        ([{"text": "rollo", "start": "0"}], r"answers\[0\] is .*; expected {"),
        ([None], r"answers\[0\] is None; expected an answer, or version_2_with_negative=True"),
        ([{"text": "", "start": 0}], r"answers\[0\] is .*; expected an answer, or version_2"),
    ],
)
def test_answers_of_another_form_are_rejected(answerer, answers, message):
    for method in (answerer.fit, answerer.evaluate):
        with pytest.raises(InputError, match=message):
            method(["who ?"], [TEXT], answers)


def test_training_answer_must_be_in_its_context(answerer):
    with pytest.raises(InputError, match=r"answers\[1\] is 'charles' at 0; expected a text at"):
        answerer.fit(["who ?"] * 2, [TEXT] * 2, [GOOD, {"text": "charles", "start": 0}])


def test_misplaced_validation_set_is_rejected_before_training(answerer):
    for given in (([], [], []), ("ab", []), ([TEXT], [GOOD])):
        with pytest.raises(InputError, match=r"expected \(\(questions, contexts\), answers\)"):
            answerer.fit(["who ?"], [TEXT], [GOOD], validation_data=given)
    with pytest.raises(InputError, match="validation_data is empty; expected at least one item"):
        answerer.fit(["who ?"], [TEXT], [GOOD], validation_data=(([], []), []))


def test_empty_data_for_training_or_scoring_is_rejected(answerer):
    with pytest.raises(InputError, match="got no examples; expected at least one"):
        answerer.fit([], [], [])
    with pytest.raises(InputError, match="got no questions; expected at least one"):
        answerer.evaluate([], [], [])


def test_models_that_cannot_answer_questions_are_rejected(make_model):
    with pytest.raises(InputError, match="BertForSequenceClassification; QuestionAnswerer expects"):
        QuestionAnswerer.from_pretrained(make_model(BertClassifier), **SMALL)
    with pytest.raises(InputError, match="type_vocab_size is 1; expected at least 2"):
        QuestionAnswerer.from_pretrained(make_model(type_vocab_size=1), **SMALL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 65}, "max_seq_length=65: expected from 5 to the model's 64 positions"),
        ({"max_seq_length": 11}, "max_seq_length=11: expected at least 12"),
        ({"n_best_size": 0}, "n_best_size=0: expected at least 1"),
        ({"null_score_diff_threshold": 1.0}, "threshold=1.0: needs version_2_with_negative"),
        ({"stride": 1}, "got unknown settings stride; expected any of max_seq_length"),
    ],
)
def test_invalid_settings_are_rejected(folder, settings, message):
    with pytest.raises(InputError, match=message):
        QuestionAnswerer.from_pretrained(folder, **(SMALL | settings))
