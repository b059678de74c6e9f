"""Questions of a run: settings, SQuAD files and tables, TensorFlow Datasets."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.question_answering.data import (
    Answer,
    AnswerSettings,
    Question,
    SquadSettings,
    aligned,
    load_questions,
    read_data,
)
from keras_bert.tasks.tables import Splits

CONTEXT = "Rollo swore fealty."
ANSWERED = Question("a", "Who?", CONTEXT, (Answer("Rollo", 0),))
ASKED = Question("b", "Who?", CONTEXT, None)


@pytest.fixture(scope="module")
def files(write_squad, tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    named = {"train_file": [ANSWERED], "eval_file": [ANSWERED], "predict_file": [ASKED]}
    return {flag: str(write_squad(folder / f"{flag}.json", q)) for flag, q in named.items()}


def read(files, *flags, **do):
    settings = SquadSettings(**{flag: files[flag] for flag in flags})
    return flat(read_data(settings, **{"do_train": True, "do_eval": True, "do_predict": True} | do))


def flat(splits):
    return Splits(splits.train, splits.dev.get(""), splits.test.get("test"))


def test_dev_questions_are_predicted_without_a_test_file(files):
    splits = read(files, "train_file")
    assert (splits.train, splits.dev, splits.test) == ([ANSWERED], None, None)
    splits = read(files, "train_file", "eval_file")
    assert splits.test is splits.dev
    splits = read(files | {"predict_file": files["eval_file"]}, *files)
    assert splits.test is splits.dev
    splits = read(files, "eval_file", do_train=False, do_eval=False)
    assert (splits.dev, splits.test) == (None, [ANSWERED])


def test_questions_need_answers_to_be_scored_but_not_to_be_predicted(files):
    assert read(files, *files).test == [ASKED]
    with pytest.raises(InputError, match=r"predict_file.json: the question 'b' has no 'answers'"):
        read({"eval_file": files["predict_file"]}, "eval_file", do_train=False)
    with pytest.raises(InputError, match="expected --train_file with a SQuAD file, --tfds, or"):
        read(files, "eval_file")


# --- files ---


def entry(**changes):
    answers = [{"text": "Rollo", "answer_start": 0}]
    return {"id": "a", "question": "Who?", "answers": answers} | changes


@pytest.fixture
def write(tmp_path):
    def write(*entries):
        path = tmp_path / "squad.json"
        data = [{"paragraphs": [{"context": CONTEXT, "qas": list(entries)}]}]
        path.write_text(json.dumps({"data": data}), encoding="utf-8-sig")
        return path

    return write


def test_question_can_be_impossible_and_a_test_file_has_no_answers(write):
    impossible = entry(id="b", answers=[], is_impossible=True, plausible_answers=[{"text": "x"}])
    unanswered = {"id": 7, "question": "Who?"}
    empty = entry(id="c", answers=[{"text": " ", "answer_start": None}])  # No answer.
    path = write(entry(), impossible, unanswered, empty)
    questions = load_questions(path.rename(path.with_name("squad")))  # Any name is JSON.
    assert questions[0] == ANSWERED
    assert [(question.id, question.answers) for question in questions[1:]] == [
        ("b", ()),
        ("7", None),  # Numeric ids are converted to strings.
        ("c", ()),
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(id=7.5)], r"item 1: paragraphs\[0\]\.qas\[0\]\.id is 7\.5; expected a string or a"),
        ([entry(question=" \n")], "'a': has an empty question or context; expected text"),
        ([entry(answers="Rollo")], r"\.answers is 'Rollo'; expected a list or an object with text"),
        ([entry(answers=[{"text": "Rollo"}])], "'a': an answer has no 'answer_start'; expected a"),
        ([entry(is_impossible=True)], "'a': has is_impossible and the answer 'Rollo'"),
        (
            [entry(), entry(question="When?")],
            "'a': has the id of another question, 'Who\\?'; expected",
        ),
        ([], "contains no questions"),
    ],
)
def test_invalid_questions_are_rejected(write, entries, message):
    with pytest.raises(InputError, match=rf"squad\.json.*{message}"):
        load_questions(write(*entries))


def test_other_format_is_rejected(tmp_path):
    (tmp_path / "other.json").write_text('{"rows": []}')
    with pytest.raises(InputError, match=r"other\.json, line 1: has no 'paragraphs'; expected a l"):
        load_questions(tmp_path / "other.json")


SHARED = {"title": "Rollo", "context": CONTEXT}
ROWS = [
    SHARED
    | {"id": "a", "question": "Who?"}
    | {"answers": {"text": ["Rollo", "rollo"], "answer_start": [0, 0]}},
    SHARED | {"id": "b", "question": "When?", "answers": {"text": [], "answer_start": []}},
]


@pytest.mark.parametrize("name", ["squad.json", "squad.parquet"])
def test_rows_of_the_hugging_face_hub_are_read(tmp_path, name):
    if name == "squad.parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / name)
    else:
        (tmp_path / name).write_text(json.dumps({"version": "1", "data": ROWS}))
    assert load_questions(tmp_path / name) == [
        Question("a", "Who?", CONTEXT, (Answer("Rollo", 0), Answer("rollo", 0))),
        Question("b", "When?", CONTEXT, ()),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": None}, "jsonl, line 2: context is None; expected a string"),
        ({"answers": {"text": ["Rollo"]}}, "line 2: answers has no 'answer_start'; expected a lis"),
        ({"answers": {"text": ["Rollo"], "answer_start": []}}, "'b': text has 1 items, answer_sta"),
    ],
)
def test_invalid_row_is_rejected_with_its_line_or_id(tmp_path, changes, message):
    path = tmp_path / "squad.jsonl"
    path.write_text("\n".join(map(json.dumps, (ROWS[0], ROWS[1] | changes))))
    with pytest.raises(InputError, match=message):
        load_questions(path)


# --- positions of answers ---


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("Rollo", 0, ("Rollo", 0)),
        ("swore\u00a0fealty", 6, ("swore\u00a0fealty", 6)),  # other whitespace
        ("swore  fealty", 6, ("swore fealty", 6)),  # more whitespace
        ("swore", 5, ("swore", 6)),
        ("fealty", 14, ("fealty", 12)),
        ("fealty", 6, ("fealty", 12)),  # within the next word
        ("fealty", 0, None),
        ("Rollo", 99, None),
        ("", 0, None),
        (".", -1, None),
    ],
)
def test_answer_is_moved_to_its_text_near_the_given_position(text, start, found):
    asked = Question("a", "Who?", CONTEXT, (Answer(text, start), Answer("Rollo", 0)))
    moved = found and asked._replace(answers=(Answer(*found), Answer("Rollo", 0)))
    assert aligned(asked) == moved


@pytest.mark.parametrize("text", ["Rollo", "Rollo \U0001f600", "to"])
def test_offset_in_utf_16_is_converted(text):
    context = 30 * "\U0001f600 " + "Oslo to Rollo \U0001f600 " + 30 * "from "
    start = context.index(text)
    asked = Question("a", "Who?", context, (Answer(text, start + 30),))
    assert aligned(asked) == asked._replace(answers=(Answer(text, start),))


def test_nearest_position_is_used_and_no_answer_stays_unchanged():
    asked = Question("a", "?", "to be or not to be", (Answer("be", 15),))
    assert aligned(asked).answers == (Answer("be", 16),)
    impossible = asked._replace(answers=())
    assert aligned(impossible) == impossible


@pytest.mark.parametrize(
    ("name", "questions", "impossible"),
    [("xquad.zh.json", 1190, 0), ("squad2_cs224n_dev.json", 6078, 3168)],
)
def test_real_files_are_read_completely(shared_data, name, questions, impossible):
    read = load_questions(shared_data / "squad" / name)
    assert len(read) == questions
    assert sum(not question.answers for question in read) == impossible
    assert [aligned(question) for question in read] == read


# --- TensorFlow Datasets ---


def test_prepared_questions_are_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    import numpy as np
    import tensorflow as tf

    text = tfds.features.Text()
    features = dict.fromkeys(["context", "question", "id"], text)
    features["answers"] = tfds.features.Sequence({"text": text, "answer_start": np.int32})
    rows = {
        "context": ["Rollo schwor ½ Treue."] * 2,
        "question": ["Wer?"] * 2,
        "id": ["a", "b"],
        "answers": {
            "text": tf.ragged.constant([["Treue"], []], tf.string),
            "answer_start": tf.ragged.constant([[15], []], tf.int32),
        },
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name="squad",
        config="v2.0",
        version="3.0.0",
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict(features),
        split_datasets={"validation": tf.data.Dataset.from_tensor_slices(rows)},
        disable_shuffling=True,
    )
    answers = AnswerSettings(version_2_with_negative=True)
    squad = SquadSettings(answers, tfds=True, data_dir=str(tmp_path))
    splits = flat(read_data(squad, do_train=False, do_eval=True, do_predict=True))
    assert splits.test is splits.dev
    assert [question.answers for question in splits.dev] == [(Answer("Treue", 15),), ()]
    assert splits.dev[0].context is splits.dev[1].context
    with pytest.raises(InputError, match="split train: expected one of validation"):
        read_data(squad, do_train=True, do_eval=False, do_predict=False)
