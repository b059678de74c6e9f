"""Fixtures: a small vocabulary and functions that make SQuAD questions and files."""

import json
import string

import pytest

from keras_bert.tasks.prepared import prepare
from keras_bert.tasks.question_answering.data import Answer, AnswerSettings, Question
from keras_bert.tasks.question_answering.processor import SpanProcessor, labeled


def labelled(questions, tokenizer, *sizes):
    """Returns the examples of questions; `sizes` are the first fields of AnswerSettings."""
    processor = SpanProcessor(tokenizer, AnswerSettings(*sizes))
    columns = [[q.text for q in questions], [q.context for q in questions]]
    return labeled(prepare(processor.preprocess, columns), questions).examples


WORDS = "the norse leader was rollo who swore fealty to king charles in year what when ?"


@pytest.fixture(scope="session")
def vocab():
    letters = string.ascii_lowercase + string.digits + ".,()-;"
    tokens = [*letters, *(f"##{letter}" for letter in letters)]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##é", "王", *tokens]


@pytest.fixture(scope="session")
def tokenizer(vocab):
    from keras_bert.text.tokenizer import BertTokenizer

    return BertTokenizer(vocab)


@pytest.fixture(scope="session")
def ask():
    """Returns a function that makes a question; the answer must be in the context."""

    def make(context, text="who ?", answer="", name="q0"):
        answers = (Answer(answer, context.index(answer)),) if answer else ()
        return Question(name, text, context, answers)

    return make


@pytest.fixture(scope="session")
def write_squad():
    """Returns a function that writes questions as a SQuAD file."""

    def write(path, questions):
        paragraphs = {}
        for q in questions:
            entry = {"id": q.id, "question": q.text}
            if q.answers is not None:
                entry["answers"] = [{"text": a.text, "answer_start": a.start} for a in q.answers]
                entry["is_impossible"] = not q.answers
            paragraphs.setdefault(q.context, []).append(entry)
        listed = [{"context": context, "qas": entries} for context, entries in paragraphs.items()]
        path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": listed}]}))
        return path

    return write
