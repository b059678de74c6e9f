"""The page in a real browser: input and displayed output for every task."""

import json
import re
import shutil

import pytest
import tensorflow as tf

from tests.export.conftest import export  # noqa: F401
from tests.server.page_driver import TEXT, photograph, rows_of, send

pytestmark = pytest.mark.slow  # Starts servers.

QUESTION_AND_CONTEXT = [
    tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")
]


def test_classification_page(visit):
    labels = ["not equivalent", "equivalent"]

    @tf.function(input_signature=[TEXT, tf.TensorSpec([None], tf.string, name="text_pair")])
    def classify(text, text_pair):
        logits = tf.one_hot(tf.cast(text == text_pair, tf.int32), 2) * 3.0
        label = tf.gather(tf.constant(labels), tf.argmax(logits, -1))
        return {"label": label, "probabilities": tf.nn.softmax(logits), "logits": logits}

    page = visit(classify, {"task": "classification", "pair": True, "labels": labels})
    assert page.inner_text("h1") == "Text classification"
    assert page.inner_text("#about") == "Model my model, version 1"
    assert page.locator("textarea").count() == 2
    send(page, text="one", text_pair="one")
    assert page.inner_text(".large") == "equivalent"
    assert rows_of(page) == ["equivalent 95.3%", "not equivalent 4.7%"]
    widths = page.locator(".track span").evaluate_all(
        "bars => bars.map(bar => bar.offsetWidth / bar.parentElement.offsetWidth)"
    )
    assert widths == pytest.approx([0.953, 0.047], abs=0.01)
    photograph(page, "classification")


def test_multi_label_classification_with_several_labels_and_none(visit):
    labels = ["joy", "anger", "surprise"]

    @tf.function(input_signature=[TEXT])
    def classify(text):
        on = tf.stack([text == "both", tf.zeros_like(text, tf.bool), text == "both"], 1)
        chosen = tf.where(text[:, None] == "both", [["joy", "surprise", ""]], "")
        return {"labels": chosen, "probabilities": tf.where(on, 0.9, 0.2), "logits": on}

    page = visit(classify, {"task": "classification", "pair": False, "labels": labels})
    send(page, text="both")
    assert page.inner_text(".large") == "joy, surprise"
    assert rows_of(page) == ["joy 90.0%", "surprise 90.0%", "anger 20.0%"]
    photograph(page, "multi_label")
    send(page, text="neither")
    assert page.inner_text(".large") == "None"


def test_regression_page(visit):
    @tf.function(input_signature=[TEXT])
    def score(text):
        return {"score": tf.cast(tf.strings.length(text), tf.float32) / 2}

    page = visit(score, {"task": "classification", "pair": False, "problem_type": "regression"})
    send(page, text="seven.s")
    assert page.inner_text(".large") == "3.5"
    photograph(page, "regression")


def test_question_answering_page(visit):
    # The second answer comes after characters of more than one UTF-16 code unit.
    @tf.function(input_signature=QUESTION_AND_CONTEXT)
    def answer(question, context):
        one = tf.ones_like(question, tf.int32)[:, None]
        answers = [tf.strings.substr(context, s, 4, unit="UTF8_CHAR") for s in (0, 9)]
        none = question == "Why?"
        return {
            "answer": tf.where(none, "", answers[1]),
            "start": tf.where(none, -1, 9),
            "end": tf.where(none, -1, 13),
            "score": tf.ones_like(question, tf.float32),
            "null_score": tf.ones_like(question, tf.float32),
            "nbest_answers": tf.stack([answers[1], answers[0], tf.fill(tf.shape(none), "")], 1),
            "nbest_starts": one * [[9, 0, -1]],
            "nbest_ends": one * [[13, 4, -1]],
            "nbest_probabilities": tf.cast(one, tf.float32) * [[0.8, 0.2, 0.0]],
            "nbest_start_logits": tf.cast(one, tf.float32) * [[1.0, 1.0, 0.0]],
            "nbest_end_logits": tf.cast(one, tf.float32) * [[1.0, 1.0, 0.0]],
        }

    page = visit(answer, {"task": "question_answering"}, "dark")
    context = "\U0001f600\U0001f600\U0001f600\U0001f600 was <b>1851</b>\n" + "more words " * 60
    send(page, question="When?", context=context)
    assert page.inner_text(".large") == "<b>1"
    assert page.inner_text("mark") == "<b>1"
    assert rows_of(page) == ["<b>1 80.0%", "\U0001f600" * 4 + " 20.0%"]
    assert page.locator(".marked").inner_text() == context
    photograph(page, "question_answering")
    # Selects the second answer with the keyboard.
    page.locator(".bars button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.inner_text("mark") == "\U0001f600" * 4
    assert page.locator("button[aria-pressed=true]").inner_text() == "\U0001f600" * 4
    send(page, question="Why?")
    assert page.inner_text(".large") == "No answer found in the context"
    assert page.locator("mark").count() == 0


def test_entities_page(visit):
    @tf.function(input_signature=[TEXT])
    def tag(text):
        one = tf.ones_like(text, tf.int32)[:, None]
        score = tf.cast(one, tf.float32) * [[0.99, 0.5, 0.75, 0.0]]
        found = text[:, None] != "nobody"
        # Exports of other programs may return tags.
        types = tf.where(found, [["B-PER", "LOC", "PER", ""]], "")
        starts, ends = [[2, 15, 21, -1]], [[7, 20, 26, -1]]
        return {
            "types": types,
            "texts": types,
            "starts": tf.where(found, starts, -1),
            "ends": tf.where(found, ends, -1),
            "scores": score,
        }

    page = visit(tag, {"task": "ner"})
    send(page, text="\U0001f600 Marie lived: Paris Curie")
    marks = page.locator(".marked mark")
    assert [text.split() for text in marks.all_inner_texts()] == [
        ["Marie", "PER"],
        ["Paris", "LOC"],
        ["Curie", "PER"],
    ]
    legend = page.locator(".legend li").all_inner_texts()
    assert [" ".join(text.split()) for text in legend] == ["LOC location (1)", "PER person (2)"]
    assert (
        page.locator("#status").text_content().startswith("Marie\u00a0PER, Paris\u00a0LOC, Curie")
    )
    colours = marks.evaluate_all(
        "marks => marks.map(mark => getComputedStyle(mark).backgroundColor)"
    )
    assert colours[0] == colours[2] != colours[1]
    assert rows_of(page) == ["Marie (PER) 99.0%", "Paris (LOC) 50.0%", "Curie (PER) 75.0%"]
    photograph(page, "entities")
    send(page, text="nobody")
    assert page.inner_text(".note >> nth=0") == "No entities found."


def test_entity_types_of_ontonotes_have_a_meaning(visit):
    types = ["NORP", "FAC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE", "DATE", "TIME"]
    types += ["PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL", "PERSON", "GPE", "ORG", "LOC"]

    @tf.function(input_signature=[TEXT])
    def tag(text):
        places = tf.range(len(types))[None] * 5
        rows = tf.shape(text)[0]
        return {
            "types": tf.tile([types], [rows, 1]),
            "texts": tf.tile([types], [rows, 1]),
            "starts": places,
            "ends": places + 4,
            "scores": tf.fill([rows, len(types)], 0.9),
        }

    page = visit(tag, {"task": "ner"})
    send(page, text="word " * len(types))
    legend = page.locator(".legend li").all_inner_texts()
    shown = [re.fullmatch(r"(\S+) (.+) \(1\)", " ".join(text.split())) for text in legend]
    assert all(shown), legend
    assert sorted(match[1] for match in shown) == sorted(types)
    photograph(page, "entity_types")


def test_fill_mask_page(visit):
    @tf.function(input_signature=[TEXT])
    def fill(text):
        masks = tf.minimum(tf.size(tf.strings.split(text, "[MASK]").flat_values) - 1, 2)
        tokens = tf.constant([["paris", "london"], ["##s", "war"], ["", ""]])
        scores = tf.constant([[0.5, 0.25], [0.125, 0.1], [0.0, 0.0]])
        # The last row is padding, as for a batch with a text with more masks.
        keep = tf.concat([tf.range(masks), [2]], 0)
        return {
            "tokens": tf.gather(tokens, keep)[None],
            "token_ids": tf.gather(tf.zeros([3, 2], tf.int32), keep)[None],
            "scores": tf.gather(scores, keep)[None],
            "truncated": tf.strings.length(text) > 25,
        }

    page = visit(fill, {"task": "fill_mask", "max_seq_length": 16}, "dark")
    send(page, text="In [MASK] year[MASK].")
    assert page.inner_text(".marked") == "In paris years."
    assert page.locator("mark").all_inner_texts() == ["paris", "s"]
    assert page.locator("#result h2").all_inner_texts()[1:] == ["Mask 1", "Mask 2"]
    assert rows_of(page) == ["paris 50.0%", "london 25.0%", "##s 12.5%", "war 10.0%"]
    photograph(page, "fill_mask")
    # A third mask is beyond the length limit.
    send(page, text="A [MASK], two[MASK] and [MASK].")
    assert page.inner_text(".warning") == (
        "The text has more than 16 tokens. The end was not read, with 1 of 3 [MASK]."
    )
    assert page.inner_text(".marked") == "A paris, twos and [MASK]."
    photograph(page, "fill_mask_truncated")
    send(page, text="no mask")
    assert page.inner_text("#error") == "The text has no [MASK]. Write it where a word is missing."
    assert page.inner_text("#result") == ""
    assert len(page.posts) == 2


def test_similarity_page(visit):
    @tf.function(input_signature=[TEXT])
    def embed(text):
        angle = tf.cast(tf.strings.length(text), tf.float32) * 0.5
        vector = tf.stack([tf.cos(angle), tf.sin(angle)], 1)
        return {"cls": vector, "mean": 3.0 * vector, "pooled": tf.abs(vector)}

    page = visit(embed, {"task": "embedding"})
    send(page, first="aa", second="bb")
    assert rows_of(page) == ["cls 1.000", "mean 1.000", "pooled 1.000"]
    assert page.locator(".large").count() == 0
    send(page, first="aa", second="bbbb")
    assert rows_of(page)[:2] == ["cls 0.540", "mean 0.540"]


def test_similarity_page_puts_the_declared_pooling_first(visit):
    @tf.function(input_signature=[TEXT])
    def embed(text):
        angle = tf.cast(tf.strings.length(text), tf.float32) * 0.5
        vector = tf.stack([tf.cos(angle), tf.sin(angle)], 1)
        truncated = tf.strings.length(text) > 3
        return {"cls": tf.abs(vector), "mean": vector, "truncated": truncated}

    page = visit(embed, {"task": "embedding", "pooling": "mean", "max_seq_length": 5})
    send(page, first="aa", second="bbbb")
    assert page.inner_text("#result h2 >> nth=0") == "Cosine similarity, mean pooling"
    assert page.inner_text(".large") == "0.540"
    assert [row.partition(" ")[0] for row in rows_of(page)] == ["cls"]
    notice = "The second text has more than 5 tokens. The end was not read."
    assert page.locator(".warning").all_inner_texts() == [notice]
    status = page.locator("#status").text_content()
    assert re.fullmatch(re.escape(f"{notice} 0.540.") + r" Answered in \d+ ms\.", status)
    photograph(page, "similarity")


def test_question_answering_page_shows_three_answers_and_more_on_demand(visit):
    @tf.function(input_signature=QUESTION_AND_CONTEXT)
    def answer(question, context):
        one = tf.ones_like(question, tf.int32)[:, None]
        ends = tf.range(20, 0, -1)[None]
        return {
            "answer": tf.strings.substr(context, 0, 20),
            "start": 0 * one[:, 0],
            "end": 20 * one[:, 0],
            "truncated": tf.strings.length(question) > 5,
            "nbest_answers": tf.strings.substr(tf.tile(context[:, None], [1, 20]), 0 * ends, ends),
            "nbest_starts": 0 * one * ends,
            "nbest_ends": one * ends,
            "nbest_probabilities": tf.fill([1, 20], 0.05),
        }

    page = visit(answer, {"task": "question_answering", "max_query_length": 4})
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


def test_classes_without_names_are_numbered(visit):
    @tf.function(input_signature=[TEXT])
    def classify(text):
        label = tf.fill(tf.shape(text), "LABEL_1")
        return {
            "label": label,
            "probabilities": tf.ones_like(text, tf.float32)[:, None] * [0.2, 0.8],
        }

    page = visit(classify, {"task": "classification", "labels": ["LABEL_0", "LABEL_1"]})
    send(page, text="a")
    assert page.inner_text(".large") == "Class 1"
    assert rows_of(page) == ["Class 1 80.0%", "Class 0 20.0%"]
    assert "does not name its classes" in page.inner_text("#result")


@pytest.mark.parametrize(
    ("name", "info", "typed", "shown"),
    [
        (
            "pair",
            {"task": "classification", "pair": True, "labels": ["no", "maybe", "yes"]},
            {"text": "The cat sat.", "text_pair": "Who sat?"},
            r"Label (no|maybe|yes) Probabilities( (no|maybe|yes) \d+\.\d%){3}",
        ),
        (
            "question_answering",
            {"task": "question_answering"},
            {"question": "Who sat?", "context": "The cat sat on the mat. \U0001f600"},
            r"Answer .+ Most likely answers( .+ \d+\.\d%){3}",
        ),
        ("ner", {"task": "ner"}, {"text": "The cat, Paris."}, r"Entities .+ Scores( .+\.\d%)+"),
        (
            "fill_mask",
            {"task": "fill_mask"},
            {"text": "The [MASK] sat."},
            r"Most likely text The\S* .*sat\. Predictions( \S+ \d+\.\d%){3}",
        ),
        (
            "embedding",
            {"task": "embedding"},
            {"first": "The cat", "second": "The mat"},
            r"Cosine similarity( (cls|mean|pooled) -?[01]\.\d{3}){3} 1 means the same",
        ),
    ],
    ids=["pair", "question_answering", "ner", "fill_mask", "embedding"],
)
def test_exported_models_work_in_the_page(
    open_page,
    export,  # noqa: F811
    tmp_path,
    name,
    info,
    typed,
    shown,
):
    folder = shutil.copytree(export(name).folder, tmp_path / "1")
    (folder / "export.json").write_text(json.dumps(info))
    page = open_page(tmp_path)
    send(page, **typed)
    assert page.is_hidden("#error")
    result = " ".join(page.inner_text("#result").split())
    assert re.match(shown, result, re.IGNORECASE), result
