"""Windows of questions and contexts, and their labels."""

import numpy as np
import pytest

from keras_bert.tasks.question_answering.data import AnswerSettings, load_questions
from keras_bert.tasks.question_answering.processor import (
    SpanProcessor,
)
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.question_answering.conftest import labelled

LONG = "rollo was the norse leader who swore fealty to king charles in the year 911"  # 17 tokens


def test_answer_is_labeled_in_windows_that_contain_all_of_it(ask, tokenizer):
    question = ask(LONG, answer="fealty to king")
    examples = labelled([question], tokenizer, 13, 4, 4)
    assert list(examples.labels["start_positions"]) == [0, 7, 0, 0]
    assert list(examples.labels["end_positions"]) == [0, 9, 0, 0]


@pytest.mark.parametrize(
    ("context", "answer", "tokens"),
    [
        ("the king (911-933) swore", "911", "9 ##1 ##1"),
        ("rollo \ud800 swore ½ fealty", "fealty", "fealty"),  # JSON can contain \ud800
    ],
)
def test_answers_are_narrowed_to_their_tokens(ask, tokenizer, vocab, context, answer, tokens):
    examples = labelled([ask(context, answer=answer)], tokenizer)
    start, end = (examples.labels[f"{end}_positions"][0] for end in ("start", "end"))
    assert " ".join(vocab[i] for i in examples.input_ids[start : end + 1]) == tokens


@pytest.mark.parametrize(
    ("language", "vocabulary", "lower"),
    [
        ("de", "bert-base-multilingual-cased", False),
        ("zh", "bert-base-chinese", True),
    ],
)
def test_labeled_tokens_give_the_answer_text_in_every_language(
    shared_data, language, vocabulary, lower
):
    questions = load_questions(shared_data / "squad" / f"xquad.{language}.json")[::4]
    tokenizer = BertTokenizer(shared_data / "vocab" / vocabulary / "vocab.txt", lower)
    examples = labelled(questions, tokenizer)
    columns = [q.text for q in questions], [q.context for q in questions]
    made = SpanProcessor(tokenizer, AnswerSettings()).preprocess(*columns)
    labels = examples.labels
    same = set()
    to_token = (made.first_token - made.context_at).numpy()
    starts, ends = (each.values.numpy() for each in (made.token_starts, made.token_ends))
    for window in np.flatnonzero(labels["start_positions"]):
        question = questions[made.question[window]]
        start = starts[to_token[window] + labels["start_positions"][window]]
        end = ends[to_token[window] + labels["end_positions"][window]]
        if question.context.encode()[start:end] == question.answers[0].text.strip().encode():
            same.add(question.id)
    # The rest ends within a word ("Methode" of "Methoden"), possibly inside a token.
    assert len(same) >= 0.97 * len(questions)
