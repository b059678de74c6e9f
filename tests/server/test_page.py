"""The page in a real browser: input and displayed output for every task."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.network import Network
from tests.export.conftest import make_task
from tests.server.conftest import CLASSIFIER, RERANKER, FakeVersion, rows_of, send

pytestmark = pytest.mark.slow  # Starts a browser.

QUESTION_AND_CONTEXT = ("question", "context")


BINARY = {"task": "classification", "pair": True, "labels": ["not equivalent", "equivalent"]}
EMOTIONS = {"task": "classification", "pair": False, "labels": ["joy", "anger", "surprise"]}


@pytest.mark.parametrize(
    ("info", "answer", "large", "rows"),
    [
        (
            BINARY,
            {"label": "equivalent", "probabilities": np.float32([0.047, 0.953])},
            "equivalent",
            ["equivalent 95.3%", "not equivalent 4.7%"],
        ),
        (
            EMOTIONS,
            {"labels": ["joy", "surprise"], "probabilities": [0.9, 0.2, 0.9]},
            "joy, surprise",
            ["joy 90.0%", "surprise 90.0%", "anger 20.0%"],
        ),
        (
            EMOTIONS,
            {"labels": ["", ""], "probabilities": [0.2] * 3},
            "None",
            ["joy 20.0%", "anger 20.0%", "surprise 20.0%"],
        ),
        ({"task": "classification"}, {"score": 3.5}, "3.5", []),
        (
            {"task": "classification", "labels": ["LABEL_0", "LABEL_1"]},
            {"label": "LABEL_1", "probabilities": [0.2, 0.8]},
            "Class 1",
            ["Class 1 80.0%", "Class 0 20.0%"],
        ),
    ],
    ids=["label", "several labels", "no label", "score", "numbered classes"],
)
def test_classification_page(visit, info, answer, large, rows):
    names = ("text", "text_pair") if info.get("pair") else ("text",)
    page = visit(info, answer, names)
    assert page.inner_text("h1") == "Text classification"
    assert page.inner_text("#about") == "Model my model, version 1"
    assert page.locator("textarea").count() == len(names)
    send(page, **dict.fromkeys(names, "one"))
    assert page.inner_text(".large") == large
    assert rows_of(page) == rows
    assert ("does not name its classes" in page.inner_text("#result")) == ("Class" in large)
    widths = page.locator(".track span").evaluate_all(
        "bars => bars.map(bar => bar.offsetWidth / bar.parentElement.offsetWidth)"
    )
    shares = [float(row.split()[-1].removesuffix("%")) / 100 for row in rows]
    assert widths == pytest.approx(shares, abs=0.01)


def test_ranking_page(visit):
    def score(query, text):
        return {"logits": [len(text) - 5.0], "truncated": len(text) > 5}

    info = RERANKER | {"max_seq_length": 16, "examples": [["what?", "that\nis it"], ["who?", "me"]]}
    page = visit(info, score, ("text", "text_pair"))
    page.wait_for_selector("#form:visible")
    assert page.inner_text("h1") == "Ranking"
    assert (page.input_value("#query"), page.input_value("#texts")) == ("what?", "that is it\nme")
    send(page, texts="a <b>\n\n  \nlonger text\n\U0001f600")
    assert rows_of(page) == ["longer text 0.998", "a <b> 0.500", "\U0001f600 0.018"]
    assert page.inner_text(".warning") == (
        "1 of 3 texts has, with the query, more than 16 tokens. Their ends were not read."
    )
    assert page.inner_text(".note >> nth=0") == "The most relevant text is number 2 of 3."
    assert json.loads(page.posts[-1]) == {
        "model": "my model",
        "query": "what?",
        "texts": ["a <b>", "longer text", "\U0001f600"],
        "return_text": True,
    }
    assert "my model:predict" not in page.locator("#curl").text_content()
    page.fill("#texts", "\n".join(f"{'a longer passage ' * 20}{index}" for index in range(12)))
    send(page)
    assert len(rows_of(page)) == 10


def test_page_asks_for_a_key_and_keeps_it_in_the_session(browser, serve_here):
    version = FakeVersion(export=CLASSIFIER)
    page = browser.new_page(base_url=serve_here(version, api_keys=(b"secret",)).url)
    page.goto("/")
    page.locator("#key:focus").wait_for()
    assert page.inner_text("h1") == "This server needs a key"
    assert page.is_hidden("#error")
    assert page.is_hidden("footer")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.locator("#error", has_text="a key that the server does not have").wait_for()
    page.fill("#key", "secret")
    page.click("#access button")
    page.locator("#form").wait_for()
    assert page.is_hidden("#access")
    assert page.is_hidden("#error")
    page.reload()
    page.locator("#form").wait_for()
    send(page, text="a")
    assert page.inner_text(".large") == "neutral"
    curl = page.locator("#curl").text_content()
    assert '-H "Authorization: Bearer $API_KEY" -d' in curl
    assert "secret" not in page.content()
    page.close()


def test_question_answering_page(visit):
    def answer(question, context):
        # The second answer comes after characters of more than one UTF-16 code unit.
        none = question == "Why?"
        return {
            "answer": "" if none else context[9:13],
            "start": -1 if none else 9,
            "end": -1 if none else 13,
            "nbest_answers": [context[9:13], context[:4], ""],
            "nbest_starts": [9, 0, -1],
            "nbest_ends": [13, 4, -1],
            "nbest_probabilities": [0.8, 0.2, 0.0],
        }

    page = visit({"task": "question_answering"}, answer, QUESTION_AND_CONTEXT)
    context = "\U0001f600\U0001f600\U0001f600\U0001f600 was <b>1851</b>\n" + "more words " * 60
    send(page, question="Why?", context=context)
    assert page.inner_text(".large") == "No answer found in the context"
    assert page.locator("mark").count() == 0
    send(page, question="When?")
    assert page.inner_text(".large") == "<b>1"
    assert page.inner_text("mark") == "<b>1"
    assert rows_of(page) == ["<b>1 80.0%", "\U0001f600" * 4 + " 20.0%"]
    assert page.locator(".marked").inner_text() == context
    # Selects the second answer with the keyboard.
    page.locator(".bars button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.inner_text("mark") == "\U0001f600" * 4
    assert page.locator("button[aria-pressed=true]").inner_text() == "\U0001f600" * 4


def test_question_answering_page_shows_three_answers_and_more_on_demand(visit):
    answers = {
        "answer": "x" * 20,
        "start": 0,
        "end": 20,
        "truncated": True,
        "nbest_answers": ["x" * end for end in range(20, 0, -1)],
        "nbest_starts": [0] * 20,
        "nbest_ends": [*range(20, 0, -1)],
        "nbest_probabilities": [0.05] * 20,
    }
    info = {"task": "question_answering", "max_query_length": 4}
    page = visit(info, answers, QUESTION_AND_CONTEXT)
    page.set_viewport_size({"width": 375, "height": 700})
    send(page, question="Where in the world?", context="x" * 40)
    notice = "The question has more than 4 tokens. The end was not read."
    assert page.inner_text(".warning") == notice
    assert len(rows_of(page)) == 3
    assert page.evaluate("document.documentElement.scrollHeight") < 1700
    page.click("text=Show 17 more")
    assert len(rows_of(page)) == 20
    assert page.evaluate("document.activeElement.textContent") == "x" * 17
    assert page.locator(".more").count() == 0


def test_entities_page(visit):
    def tag(text):
        entities = [("B-PER", 2, 7, 0.99), ("LOC", 15, 20, 0.5), ("PER", 21, 26, 0.75)]
        entities = [] if text == "nobody" else entities
        columns = zip(*entities, ("", -1, -1, 0.0), strict=True)  # Padding.
        return dict(zip(("types", "starts", "ends", "scores"), map(list, columns), strict=True))

    page = visit({"task": "ner"}, tag)
    send(page, text="nobody")
    assert page.inner_text(".note >> nth=0") == "No entities found."
    send(page, text="\U0001f600 Marie lived: Paris Curie")
    marks = page.locator(".marked mark")
    texts = [text.split() for text in marks.all_inner_texts()]
    assert texts == [["Marie", "PER"], ["Paris", "LOC"], ["Curie", "PER"]]
    legend = page.locator(".legend li").all_inner_texts()
    assert [" ".join(text.split()) for text in legend] == ["LOC location (1)", "PER person (2)"]
    status = page.locator("#status").text_content()
    assert status.startswith("Marie\u00a0PER, Paris\u00a0LOC, Curie")
    colours = marks.evaluate_all(
        "marks => marks.map(mark => getComputedStyle(mark).backgroundColor)"
    )
    assert colours[0] == colours[2] != colours[1]
    assert rows_of(page) == ["Marie (PER) 99.0%", "Paris (LOC) 50.0%", "Curie (PER) 75.0%"]


def test_entity_types_of_ontonotes_have_a_meaning(visit):
    types = ["NORP", "FAC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE", "DATE", "TIME"]
    types += ["PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL", "PERSON", "GPE", "ORG", "LOC"]
    starts = [5 * index for index in range(len(types))]
    ends, scores = [start + 4 for start in starts], [0.9] * len(types)
    page = visit(
        {"task": "ner"}, {"types": types, "starts": starts, "ends": ends, "scores": scores}
    )
    send(page, text="word " * len(types))
    legend = page.locator(".legend li").all_inner_texts()
    shown = [re.fullmatch(r"(\S+) (.+) \(1\)", " ".join(text.split())) for text in legend]
    assert all(shown), legend
    assert sorted(match[1] for match in shown) == sorted(types)


def test_fill_mask_page(visit):
    def fill(text):
        # The last row is padding, as for a batch with a text with more masks.
        rows = [*range(min(text.count("[MASK]"), 2)), 2]
        tokens = np.array([["paris", "london"], ["##s", "war"], ["", ""]])[rows]
        scores = np.array([[0.5, 0.25], [0.125, 0.1], [0.0, 0.0]])[rows]
        ids = np.array([[1, 2], [3, 4], [-1, -1]])[rows]
        return {"tokens": tokens, "token_ids": ids, "scores": scores, "truncated": len(text) > 25}

    page = visit({"task": "fill_mask", "max_seq_length": 16}, fill)
    send(page, text="In [MASK] year[MASK].")
    assert page.inner_text(".marked") == "In paris years."
    assert page.locator("mark").all_inner_texts() == ["paris", "s"]
    assert page.locator("#result h2").all_inner_texts()[1:] == ["Mask 1", "Mask 2"]
    assert rows_of(page) == ["paris 50.0%", "london 25.0%", "##s 12.5%", "war 10.0%"]
    send(page, text="no mask")
    assert page.inner_text("#error") == "The text has no [MASK]. Write it where a word is missing."
    assert page.inner_text("#result") == ""
    assert len(page.posts) == 1
    # A third mask is beyond the length limit.
    send(page, text="A [MASK], two[MASK] and [MASK].")
    assert page.inner_text(".warning") == (
        "The text has more than 16 tokens. The end was not read, with 1 of 3 [MASK]."
    )
    assert page.inner_text(".marked") == "A paris, twos and [MASK]."


def embed(text):
    angle = len(text) * 0.5
    vector = np.array([np.cos(angle), np.sin(angle)])
    return {"cls": np.abs(vector), "mean": 3 * vector, "truncated": len(text) > 3}


def test_similarity_page(visit):
    page = visit({"task": "embedding"}, embed)
    send(page, first="aa", second="bb")
    assert rows_of(page) == ["cls 1.000", "mean 1.000"]
    assert page.locator(".large").count() == 0
    send(page, first="aa", second="bbb")
    assert rows_of(page)[1:] == ["mean 0.878"]


def test_similarity_page_puts_the_declared_pooling_first(visit):
    page = visit({"task": "embedding", "pooling": "mean", "max_seq_length": 5}, embed)
    send(page, first="aa", second="bbbb")
    assert page.inner_text("#result h2 >> nth=0") == "Cosine similarity, mean pooling"
    assert page.inner_text(".large") == "0.540"
    assert [row.partition(" ")[0] for row in rows_of(page)] == ["cls"]
    notice = "The second text has more than 5 tokens. The end was not read."
    assert page.locator(".warning").all_inner_texts() == [notice]
    status = page.locator("#status").text_content()
    assert re.fullmatch(re.escape(f"{notice} 0.540.") + r" Answered in \d+ ms\.", status)


@pytest.mark.parametrize(
    ("name", "typed", "shown"),
    [
        (
            "pair",
            {"text": "The cat sat.", "text_pair": "Who sat?"},
            r"Label (no|maybe|yes) Probabilities( (no|maybe|yes) \d+\.\d%){3}",
        ),
        (
            "question_answering",
            {"question": "Who sat?", "context": "The cat sat on the mat. \U0001f600"},
            r"Answer .+ Most likely answers( .+ \d+\.\d%){3}",
        ),
        ("ner", {"text": "The cat, Paris."}, r"Entities .+ Scores( .+\.\d%)+"),
        (
            "fill_mask",
            {"text": "The [MASK] sat."},
            r"Most likely text The\S* .*sat\. Predictions( \S+ \d+\.\d%){3}",
        ),
        (
            "embedding",
            {"first": "The cat", "second": "The mat"},
            r"Cosine similarity( (cls|mean|pooled) -?[01]\.\d{3}){3} 1 means the same",
        ),
    ],
    ids=["pair", "question_answering", "ner", "fill_mask", "embedding"],
)
def test_answers_of_every_task_are_shown(visit, name, typed, shown):
    task = make_task(name)
    served = task.served_class(Network(task.model), task.processor)
    inputs = [spec.name for spec in served.steps()["serving_default"].specs]

    def answer(*texts):
        outputs = served.run("serving_default", *(tf.constant([text]) for text in texts))
        values = {output: value.numpy()[0] for output, value in outputs.items()}
        return {output: _decoded(value) for output, value in values.items()}

    page = visit({"task": task.task, **task.export_entries()}, answer, inputs)
    send(page, **typed)
    assert page.is_hidden("#error")
    result = " ".join(page.inner_text("#result").split())
    assert re.match(shown, result, re.IGNORECASE), result


def _decoded(value):
    if isinstance(value, bytes):
        return value.decode()
    if value.dtype == object:
        return np.array([text.decode() for text in value.flat]).reshape(value.shape)
    return value
