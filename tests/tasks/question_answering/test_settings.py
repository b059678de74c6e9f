"""Tests that the settings of question answering reject invalid values."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.settings import AnswerSettings, check_doc_stride


@pytest.mark.parametrize(
    "name", ["n_best_size", "max_answer_length", "doc_stride", "max_query_length"]
)
def test_settings_out_of_range_are_rejected(name):
    with pytest.raises(InputError, match=f"{name}=0: expected at least 1"):
        AnswerSettings(**{name: 0})


def test_window_must_have_room_for_the_context():
    with pytest.raises(InputError, match="max_seq_length=67: expected at least 68"):
        AnswerSettings(67, 64)


def test_threshold_that_is_not_a_number_is_rejected():
    with pytest.raises(InputError, match="null_score_diff_threshold=nan: expected a finite num"):
        AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=float("nan"))


def test_threshold_needs_questions_without_answer():
    with pytest.raises(InputError, match=r"threshold=0\.0: needs version_2_with_negative"):
        AnswerSettings(null_score_diff_threshold=0.0)


def test_only_v2_has_a_threshold():
    assert AnswerSettings().threshold is None
    assert AnswerSettings(version_2_with_negative=True).threshold == 0.0


def test_stride_that_is_larger_than_every_window_is_rejected():
    check_doc_stride(380, 384)
    with pytest.raises(InputError, match=r"doc_stride=381: is larger .* at most 380, for max_seq_"):
        check_doc_stride(381, 384)
