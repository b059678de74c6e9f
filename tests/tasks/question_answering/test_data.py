"""Tests which questions a run reads from files or TFDS."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.data import SquadSettings, read_data
from keras_bert.tasks.question_answering.questions import Answer, Question

TEXT = "Rollo swore fealty to King Charles"
ANSWERED = Question("a", "Who?", TEXT, (Answer("Rollo", 0),))
ASKED = Question("b", "Who?", TEXT, None)


@pytest.fixture(scope="module")
def files(write_squad, tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    named = {"train_file": [ANSWERED], "eval_file": [ANSWERED], "predict_file": [ASKED]}
    return {flag: str(write_squad(folder / f"{flag}.json", q)) for flag, q in named.items()}


def read(files, *flags, **do):
    settings = SquadSettings(**{flag: files[flag] for flag in flags})
    return read_data(settings, **{"do_train": True, "do_eval": True, "do_predict": True} | do)


def test_splits_without_a_file_are_none(files):
    splits = read(files, "train_file")
    assert (splits.train, splits.dev, splits.test) == ([ANSWERED], None, None)


def test_dev_questions_are_predicted_without_a_test_file(files):
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


@pytest.mark.parametrize(
    ("flags", "do", "message"),
    [
        (("eval_file",), {}, "--train_file is missing; expected a SQuAD file, --tfds or --nodo"),
        (("train_file",), {"do_train": False}, "nothing to do: .* expected --eval_file"),
    ],
)
def test_missing_file_flag_is_named(files, flags, do, message):
    with pytest.raises(InputError, match=message):
        read(files, *flags, **do)
