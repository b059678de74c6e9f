"""QuestionAnswerer, and fine-tuning on the files of a run."""

import json
from dataclasses import replace

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertEncoder, BertSpanLabeler
from keras_bert.tasks.fine_tuning import FineTuningRun
from keras_bert.tasks.question_answering.data import (
    Answer,
    AnswerSettings,
    Question,
    SquadSettings,
    scorable,
    trainable,
)
from keras_bert.tasks.question_answering.task import QuestionAnswerer
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.objective import TrainingSettings
from tests.tasks.question_answering.conftest import labelled

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
        save_model_directory(folder, made, vocab)
        return folder

    return make


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model()


@pytest.fixture(scope="module")
def answerer(folder):
    return QuestionAnswerer.from_pretrained(folder, **SMALL)


def test_answers_are_slices_of_the_given_strings(answerer):
    found = answerer.predict(QUESTIONS, CONTEXTS, batch_size=2)
    assert found["nbest_answers"].shape == (4, 4)
    for i, context in enumerate(CONTEXTS):
        best = [(found["answer"][i], found["start"][i], found["end"][i])]
        n_best = (found[f"nbest_{name}"][i] for name in ("answers", "starts", "ends"))
        for text, start, end in [*best, *zip(*n_best, strict=True)]:
            assert text == (context[start:end] if start >= 0 else "")
    assert [bool(answer) for answer in found["answer"]] == [True, True, False, True]
    assert {type(text) for text in found["answer"]} == {str}
    assert found["score"].dtype == np.float32
    empty = answerer.predict([], [])
    assert {name: len(values) for name, values in empty.items()} == dict.fromkeys(found, 0)
    assert empty["nbest_answers"].shape == (0, 4)


def test_evaluate_logs_the_number_of_truncated_questions(answerer, caplog):
    limit = answerer.settings.max_query_length
    answer = {"text": "the cat", "start": 0}
    answerer.evaluate(["the " * (limit + 1), "the"], ["the cat"] * 2, [answer] * 2)
    assert f"1 of 2 questions are truncated to max_query_length={limit} tokens" in caplog.text


@pytest.mark.slow
def test_fit_learns_answers_and_reports_their_scores(make_model):
    start = make_model(
        BertEncoder, hidden_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    answerer = QuestionAnswerer.from_pretrained(start, **SMALL)
    assert answerer.untrained
    asked, contexts, answers = [], [], []
    for name in ("rollo", "charles", "leader", "king"):
        asked += ["who swore ?", "who was king ?"]
        contexts += [f"the year {name} swore fealty in the year 911"] * 2
        answers += [{"text": name, "start": 9}, None]  # None sets version_2_with_negative.
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
        jit_compile=False,
    ).history
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert history["val_f1"][-1] == 100.0
    assert not answerer.untrained
    scores = answerer.evaluate(asked, contexts, [[a] if a else a for a in answers])
    assert scores["exact"] == scores["NoAns_f1"] == 100.0
    found = answerer.predict(asked, contexts)
    assert found["answer"].tolist() == [a["text"] if a else "" for a in answers]


def test_one_context_is_repeated_for_all_questions_and_two_strings_give_one_answer(answerer):
    expected = answerer.predict(QUESTIONS[:2], CONTEXTS[:1] * 2)
    for name, values in answerer.predict(QUESTIONS[:2], CONTEXTS[0]).items():
        np.testing.assert_array_equal(values, expected[name])
    answer = answerer.predict(QUESTIONS[0], CONTEXTS[0])
    assert (answer["answer"], answer["start"]) == (expected["answer"][0], expected["start"][0])
    assert (type(answer["start"]), type(answer["truncated"])) == (int, bool)


TEXT = "rollo swore"
GOOD = {"text": "rollo", "start": 0}


@pytest.mark.parametrize(
    ("questions", "contexts", "message"),
    [
        (5, [TEXT], "questions is 5, a int; expected a list of strings"),
        ("who ?", None, "contexts is None, a NoneType; expected a list of strings"),
        (["who ?"] * 2, [TEXT], "questions has 2 items, contexts has 1 items; expected lists of"),
    ],
)
def test_invalid_texts_are_rejected(answerer, questions, contexts, message):
    calls = (answerer.predict,), (answerer.evaluate, [GOOD]), (answerer.fit, [GOOD])
    for method, *answers in calls:
        with pytest.raises(InputError, match=message):
            method(questions, contexts, *answers)


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "rollo", "answer_start": 0},
        {"text": ["rollo"], "answer_start": [0]},
        {"text": np.array(["rollo"], object), "answer_start": np.array([0], np.int32)},
        [{"text": "rollo", "answer_start": 0}],
    ],
)
def test_answers_have_the_forms_of_squad(answerer, answer):
    data = (["who ?"], [TEXT])
    assert answerer.evaluate(*data, [answer]) == answerer.evaluate(*data, [GOOD])
    table = pa.table({"question": data[0], "context": data[1], "answers": [GOOD]})
    assert answerer.evaluate(table) == answerer.evaluate(*data, [GOOD])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "questions has 1 items, answers has 0 items"),
        (["rollo"], r"answers\[0\] is 'rollo', a str; expected a list of answers"),
        ([{"text": "rollo"}], r"answers\[0\] has no 'start'; expected a whole number"),
        ([{"text": 5, "answer_start": 0}], r"answers\[0\]\.text is 5; expected a string"),
        ([{"text": ["rollo"], "answer_start": []}], r"\.text has 1 items, answers\[0\]\.answer_st"),
    ],
)
def test_answers_of_another_form_are_rejected(answerer, answers, message):
    for method in (answerer.fit, answerer.evaluate):
        with pytest.raises(InputError, match=message):
            method(["who ?"], [TEXT], answers)


DATASET = tf.data.Dataset.from_tensors((("who ?", TEXT), {"text": "a", "start": 0}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda it: it.fit(["who ?"] * 2, [TEXT] * 2, [GOOD, {"text": "charles", "start": 0}]),
            r"answers\[1\] is 'charles' at 0; expected a text at",
        ),
        (
            lambda it: it.fit(["who ?"], [TEXT], [GOOD], validation_data=([TEXT], [GOOD])),
            r"expected \(\(questions, contexts\), answers\)",
        ),
        (lambda it: it.fit(DATASET), "questions is a tf.data.Dataset; expected lists, or a table"),
        (
            lambda it: it.fit(["who ?"], [TEXT], [GOOD], validation_data=((["a"], [TEXT]), [5])),
            r"^validation_data: answers\[0\] is 5, a int; expected",
        ),
        (lambda it: it.fit([], [], []), "got no examples; expected at least one"),
        (lambda it: it.evaluate([], [], []), "got no questions; expected at least one"),
        *(
            (
                lambda it, answer=answer: it.evaluate(["who ?"], [TEXT], [answer]),
                r"answers\[0\] has no answer; expected one, or a model for questions without",
            )
            for answer in (None, {"text": "", "start": 0}, {"text": [], "answer_start": []})
        ),
    ],
)
def test_data_that_cannot_be_used_are_rejected(answerer, call, message):
    with pytest.raises(InputError, match=message):
        call(answerer)


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
        ({"n_best_size": 0}, "n_best_size=0: expected a whole number of at least 1"),
        ({"null_score_diff_threshold": 1.0}, "threshold=1.0: needs version_2_with_negative"),
        ({"stride": 1}, "got unknown settings stride; expected any of max_seq_length"),
    ],
)
def test_invalid_settings_are_rejected(folder, settings, message):
    with pytest.raises(InputError, match=message):
        QuestionAnswerer.from_pretrained(folder, **(SMALL | settings))


# --- fine-tuning ---

STORY = "Rollo the Norse leader swore fealty to King Charles in the year 911"
V1, V2 = (AnswerSettings(version_2_with_negative=has_v2) for has_v2 in (False, True))


@pytest.fixture
def questions(ask):
    return [
        ask(STORY, "who swore ?", "Rollo", "a"),
        ask(STORY, "what year ?", "911", "b"),
        ask(STORY, "when was the leader ?", "", "c"),
    ]


@pytest.fixture
def predict_answers_of(tokenizer):
    """Returns a function that makes a model with high logits at the right span or [CLS].

    These positions are at least `first`.
    """

    def make(questions, points=10.0, first=0):
        examples = labelled(questions, tokenizer)

        def predict(asked):
            np.testing.assert_array_equal(asked.input_ids, examples.input_ids)
            logits = {}
            for end in ("start", "end"):
                logits[f"{end}_logits"] = values = np.zeros([len(asked.input_ids)], np.float32)
                positions = np.maximum(examples.labels[f"{end}_positions"], first)
                values[asked.starts[:-1] + positions] = points
            return logits

        return predict

    return make


def scores_of(answerer, questions, predict):
    dev = answerer.prepared_set(questions)
    return answerer.score_outputs(dev, predict(dev.prepared.examples))


def written(folder, answerer, questions, predict, scores):
    """Writes predictions; returns the contents of the files."""
    test = answerer.prepared_set(questions)
    folder.mkdir()
    answerer.write_predictions(folder / "test", test, predict(test.prepared.examples), scores)
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_model_that_knows_the_answers_scores_100(tokenizer, questions, predict_answers_of):
    answerer = QuestionAnswerer(None, tokenizer, V1)
    answered = scorable(questions, SquadSettings(V1), "development")
    assert scorable(answered, SquadSettings(V1), "development") is answered  # Prepared only once.
    scores = scores_of(answerer, answered, predict_answers_of(questions[:2]))
    assert scores == {"exact": 100.0, "f1": 100.0}
    assert answerer._best_metric == "f1"
    answerer = QuestionAnswerer(None, tokenizer, V2)
    answered = scorable(questions, SquadSettings(V2), "development")
    scores = scores_of(answerer, answered, predict_answers_of(questions))
    names = ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1")
    assert {name: scores[name] for name in names} == dict.fromkeys(names, 100.0)
    assert {"best_exact_thresh", "best_f1_thresh", "total"} <= scores.keys()
    assert answerer._best_metric == "best_f1"
    with pytest.raises(InputError, match=r"no development question has an answer; .*version_2_wit"):
        scorable(questions[2:], SquadSettings(V1), "development")


def test_predictions_are_written_to_the_three_files_of_google(
    tmp_path, tokenizer, questions, predict_answers_of
):
    predict = predict_answers_of(questions)
    for settings, names in ((V1, []), (V2, ["null_odds.json"])):
        answerer = QuestionAnswerer(None, tokenizer, settings)
        files = written(tmp_path / str(len(names)), answerer, questions, predict, {})
        assert files.keys() == {"predictions.json", "nbest_predictions.json", *names}
        answers = files["predictions.json"]
        # In v1.1, every question has an answer.
        assert answers == {"a": "Rollo", "b": "911", "c": "" if names else answers["c"]}
        assert bool(answers["c"]) == (settings is V1)
    assert files["null_odds.json"] == {"a": -20.0, "b": -20.0, "c": 20.0}
    assert files["nbest_predictions.json"]["c"][0]["text"] == ""


@pytest.mark.parametrize(("threshold", "empty"), [(None, {"c"}), (0.0, set())])
def test_other_questions_use_the_best_threshold_of_dev(
    tmp_path, tokenizer, questions, predict_answers_of, threshold, empty
):
    # Every null score is below that of the right span, by the least for the impossible question:
    # only a threshold below 0 separates it.
    predict = predict_answers_of(questions, np.array([9.0, 9.0, 1.0]), first=8)
    settings = replace(V2, null_score_diff_threshold=threshold)
    answerer = QuestionAnswerer(None, tokenizer, settings)
    scores = scores_of(answerer, questions, predict)
    files = written(tmp_path / "out", answerer, questions, predict, scores)
    assert {name for name, text in files["predictions.json"].items() if not text} == empty
    by = scores["null_score_diff_threshold"]  # The same, in results.json.
    assert {name for name, odds in files["null_odds.json"].items() if odds > by} == empty


def test_training_questions_without_a_correct_answer_are_skipped(questions, caplog):
    shifted = Question("a", questions[0].text, STORY, (Answer("Rollo", 2),))
    wrong = Question("d", "who ?", STORY, (Answer("Rollo", 40),))
    assert trainable([shifted, *questions[1:], wrong], SquadSettings(V1)) == questions[:2]
    assert "1 of 3 training answers are not in their context" in caplog.text
    assert "'Rollo' at 40 for the question 'd'; these questions are skipped" in caplog.text
    with pytest.raises(InputError, match="no training question has its answer in its context"):
        trainable([wrong], SquadSettings(V1))
    assert trainable(questions, SquadSettings(V2)) == questions


def test_public_span_labeler_without_a_pooler_is_scored(
    make_model, write_squad, questions, tmp_path, caplog
):
    def score(folder):
        return QuestionAnswerer.fine_tune(
            SquadSettings(eval_file=str(write_squad(tmp_path / "dev.json", questions[:2]))),
            FineTuningRun(
                training=TrainingSettings(num_train_steps=0, train_batch_size=8, jit_compile=False),
                strategy=tf.distribute.get_strategy(),
                output_dir=tmp_path / "out",
                settings=FineTuningSettings(str(folder), max_seq_length=80, do_train=False),
            ),
        )

    with pytest.raises(InputError, match=r"model: type_vocab_size is 1; expected at least 2"):
        score(make_model(type_vocab_size=1, max_position_embeddings=80))
    assert not (tmp_path / "out").exists()
    folder = make_model(max_position_embeddings=80)
    file = folder / "model.safetensors"
    save_file({name: v for name, v in load_file(file).items() if "pooler" not in name}, file)
    with caplog.at_level("INFO", "absl"):
        assert score(folder).keys() >= {"exact", "f1"}
    assert "weights loaded" in caplog.text
    assert "encoder/pooler" not in caplog.text
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()).keys() == {"a", "b"}
