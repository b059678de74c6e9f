"""SQuAD files: what is read of them, and what is refused."""

import json
from dataclasses import replace

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.questions import (
    Answer,
    Question,
    aligned,
    check_answered,
    load_questions,
)

CONTEXT = "Rollo swore fealty."


def entry(**changes):
    answers = [{"text": "Rollo", "answer_start": 0}]
    return {"id": "a", "question": "Who?", "answers": answers} | changes


@pytest.fixture
def write(tmp_path):
    def write(*entries, context=CONTEXT):
        path = tmp_path / "squad.json"
        data = [{"paragraphs": [{"context": context, "qas": list(entries)}]}]
        path.write_text(json.dumps({"data": data}))
        return path

    return write


def test_a_question_has_its_context_and_answers(write):
    assert load_questions(write(entry())) == [
        Question("a", "Who?", CONTEXT, (Answer("Rollo", 0),)),
    ]


def test_a_question_can_have_no_answer_and_a_test_file_can_say_none(write):
    impossible = entry(id="b", answers=[], is_impossible=True)
    unsaid = {"id": "c", "question": "Who?"}
    path = write(impossible, unsaid)
    questions = load_questions(path)
    assert [question.answers for question in questions] == [(), None]
    with pytest.raises(InputError, match=r"squad.json: the question 'c' has no 'answers'"):
        check_answered(questions, path)


def test_the_plausible_answers_of_impossible_questions_are_no_answers(write):
    plausible = [{"text": "Rollo", "answer_start": 0}]
    path = write(entry(answers=[], is_impossible=True, plausible_answers=plausible))
    assert load_questions(path)[0].answers == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"id": 7.5}, r"qas\[0\]: expected 'id' to be a str, got 7.5"),
        ({"question": " \n"}, r"the question 'a': 'question' is empty"),
        ({"answers": "Rollo"}, r"the question 'a': expected 'answers' to be a list, got 'Rollo'"),
        (
            {"answers": [{"text": "Rollo"}]},
            r"'a': expected 'answer_start' to be a int, got nothing",
        ),
        ({"is_impossible": True}, r"'a' is_impossible, yet has the answer 'Rollo'"),
    ],
)
def test_a_broken_question_is_refused_by_name(write, broken, message):
    with pytest.raises(InputError, match=rf"squad.json: .*{message}"):
        load_questions(write(entry(**broken)))


def test_questions_may_be_numbered_and_a_number_counts_as_its_digits(write):
    assert [q.id for q in load_questions(write(entry(id=7), entry(id="8")))] == ["7", "8"]
    with pytest.raises(InputError, match="the question id '7' is there twice"):
        load_questions(write(entry(id=7), entry(id="7")))


def test_an_empty_context_is_refused(write):
    with pytest.raises(InputError, match=r"data\[0\].paragraphs\[0\]: 'context' is empty"):
        load_questions(write(entry(), context=""))


def test_two_questions_of_one_id_are_refused(write):
    with pytest.raises(InputError, match=r"id 'a' is there twice, for 'Who\?' and 'When\?'"):
        load_questions(write(entry(), entry(question="When?")))


def test_a_file_of_another_form_is_refused(tmp_path, write):
    with pytest.raises(InputError, match="holds no question"):
        load_questions(write())
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}')
    with pytest.raises(InputError, match=r"other\.json: expected 'data' to be a list, got nothing"):
        load_questions(other)


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("Rollo", 0, ("Rollo", 0)),
        ("swore\u00a0fealty", 6, ("swore\u00a0fealty", 6)),  # other white space
        ("swore  fealty", 6, ("swore fealty", 6)),  # more of it
        ("swore", 5, ("swore", 6)),
        ("fealty", 14, ("fealty", 12)),
        ("fealty", 6, ("fealty", 12)),  # in the word after
        ("fealty", 0, None),
        ("Charles", 0, None),
        ("Rollo", 99, None),
        ("", 0, None),
        (".", -1, None),
    ],
)
def test_an_answer_near_where_it_says_is_moved_there(text, start, found):
    asked = Question("a", "Who?", CONTEXT, (Answer(text, start), Answer("Rollo", 0)))
    moved = aligned(asked)
    if found is None:
        assert moved is None
    else:
        assert moved == replace(asked, answers=(Answer(*found), Answer("Rollo", 0)))


def test_the_nearest_place_is_taken_and_a_question_without_answer_stays():
    asked = Question("a", "?", "to be or not to be", (Answer("be", 15),))
    assert aligned(asked).answers == (Answer("be", 16),)
    impossible = replace(asked, answers=())
    assert aligned(impossible) is impossible


@pytest.mark.parametrize(
    ("name", "questions", "impossible"),
    [("xquad.zh.json", 1190, 0), ("squad2_cs224n_dev.json", 6078, 3168)],
)
def test_real_files_are_read_whole(shared_data, name, questions, impossible):
    read = load_questions(shared_data / "squad" / name)
    assert len(read) == questions
    assert sum(not question.answers for question in read) == impossible
    assert all(aligned(question) is question for question in read)
