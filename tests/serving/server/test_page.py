"""The page in a real browser: input and displayed output for every task.

Set PAGE_SCREENSHOTS=FOLDER to save a screenshot of each.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow  # Starts servers.

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
TEXT = tf.TensorSpec([None], tf.string, name="text")


@pytest.fixture(scope="module")
def browser():
    # .ci/run installs both and sets this variable, so that these tests fail there, not skip.
    needed = "KERAS_BERT_NEEDS_CHROMIUM" in os.environ
    if not needed:
        pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        (pytest.fail if needed else pytest.skip)("/usr/bin/chromium is not installed")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, serve_here):
    """Returns a function: folder of versions -> page of a server of them."""
    pages = []

    def open_page(folder: Path, scheme: str = "light"):
        server = serve_here(folder, model_name="my model")
        page = browser.new_page(
            viewport={"width": 900, "height": 900}, color_scheme=scheme, base_url=server.url
        )
        page.console_messages = []
        page.on("console", lambda message: page.console_messages.append(message.text))
        page.on("pageerror", lambda error: page.console_messages.append(str(error)))
        page.goto("/")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert not page.console_messages
        page.close()


@pytest.fixture
def visit(open_page, tmp_path):
    """Returns a function: (signature, export.json) -> page of a server of them."""

    def save_and_open(signature, export: dict, scheme: str = "light"):
        module = tf.Module()
        tf.saved_model.save(module, str(tmp_path / "1"), {"serving_default": signature})
        (tmp_path / "1" / "export.json").write_text(json.dumps(export))
        return open_page(tmp_path, scheme)

    return save_and_open


def send(page, **texts: str) -> None:
    for name, text in texts.items():
        page.fill(f"#{name}", text)
    page.click("#send")
    page.wait_for_selector("#send:not([aria-disabled])")


def photograph(page, name: str) -> None:
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/page_{name}.png", full_page=True)


def rows_of(page) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(".bars li").all_inner_texts()]


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
    send(page, text="neither")
    assert page.inner_text(".large") == "None"


def test_regression_page(visit):
    @tf.function(input_signature=[TEXT])
    def score(text):
        return {"score": tf.cast(tf.strings.length(text), tf.float32) / 2}

    page = visit(score, {"task": "classification", "pair": False, "problem_type": "regression"})
    send(page, text="seven.s")
    assert page.inner_text(".large") == "3.5"


def test_question_answering_page(visit):
    # The second answer comes after characters of more than one UTF-16 code unit.
    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="question"),
            tf.TensorSpec([None], tf.string, name="context"),
        ]
    )
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
        types = tf.where(found, [["PER", "LOC", "PER", ""]], "")
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
    assert page.locator("mark").all_inner_texts() == ["MariePER", "ParisLOC", "CuriePER"]
    colours = page.locator("mark").evaluate_all(
        "marks => marks.map(mark => getComputedStyle(mark).backgroundColor)"
    )
    assert colours[0] == colours[2] != colours[1]
    assert rows_of(page) == ["Marie (PER) 99.0%", "Paris (LOC) 50.0%", "Curie (PER) 75.0%"]
    photograph(page, "entities")
    send(page, text="nobody")
    assert page.inner_text(".note") == "No entities found."


def test_fill_mask_page(visit):
    @tf.function(input_signature=[TEXT])
    def fill(text):
        masks = tf.size(tf.strings.split(text, "[MASK]").flat_values) - 1
        tokens = tf.constant([["paris", "london"], ["##s", "war"], ["", ""]])
        scores = tf.constant([[0.5, 0.25], [0.125, 0.1], [0.0, 0.0]])
        # The last row is padding, as for a batch with a text with more masks.
        keep = tf.concat([tf.range(masks), [2]], 0)
        return {
            "tokens": tf.gather(tokens, keep)[None],
            "token_ids": tf.gather(tf.zeros([3, 2], tf.int32), keep)[None],
            "scores": tf.gather(scores, keep)[None],
        }

    page = visit(fill, {"task": "fill_mask"}, "dark")
    send(page, text="In [MASK] year[MASK].")
    assert page.inner_text(".marked") == "In paris years."
    assert page.locator("mark").all_inner_texts() == ["paris", "s"]
    assert page.locator("#result h2").all_inner_texts()[1:] == ["Mask 1", "Mask 2"]
    assert rows_of(page) == ["paris 50.0%", "london 25.0%", "##s 12.5%", "war 10.0%"]
    photograph(page, "fill_mask")
    send(page, text="no mask")
    assert page.inner_text(".note") == "The text has no [MASK]."


def test_similarity_page(visit):
    @tf.function(input_signature=[TEXT])
    def embed(text):
        angle = tf.cast(tf.strings.length(text), tf.float32) * 0.5
        vector = tf.stack([tf.cos(angle), tf.sin(angle)], 1)
        return {"cls": vector, "mean": 3.0 * vector, "pooled": tf.abs(vector)}

    page = visit(embed, {"task": "embedding"})
    send(page, first="aa", second="bb")
    assert rows_of(page) == ["cls 1.000", "mean 1.000", "pooled 1.000"]
    send(page, first="aa", second="bbbb")
    assert rows_of(page)[:2] == ["cls 0.540", "mean 0.540"]
    photograph(page, "similarity")


def test_errors_are_shown_and_keyboard_can_submit(visit):
    @tf.function(input_signature=[TEXT])
    def reject(text):
        with tf.control_dependencies([tf.debugging.Assert(text[0] != "boom", ["a boom"])]):
            return {"score": tf.ones_like(text, tf.float32)}

    page = visit(reject, {"task": "classification", "pair": False})
    page.wait_for_function("document.activeElement.id === 'text'")
    page.fill("#text", "boom")
    with page.expect_response("**:predict"):
        page.keyboard.press("Control+Enter")
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error").startswith("assertion failed: [a boom]")
    photograph(page, "error")
    send(page, text="well")
    page.wait_for_selector("#error", state="hidden")
    assert page.inner_text(".large") == "1"
    # Chromium logs each failed request to its console.
    assert [text for text in page.console_messages if "400" not in text] == []
    page.console_messages.clear()
    for label in page.locator("label").all():
        assert page.locator(f"#{label.get_attribute('for')}").count() == 1


def test_unknown_task_is_reported(visit):
    @tf.function(input_signature=[TEXT])
    def echo(text):
        return {"text": text}

    page = visit(echo, {"task": "poetry"})
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error") == 'This page does not support the task "poetry".'
    assert page.is_hidden("#form")


@pytest.mark.parametrize(
    ("name", "info", "typed", "shown"),
    [
        (
            "pair",
            {"task": "classification", "pair": True, "labels": ["label 0", "label 1", "label 2"]},
            {"text": "The cat sat.", "text_pair": "Who sat?"},
            r"Label label \d Probabilities( label \d \d+\.\d%){3}",
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
def test_exported_models_work_in_the_page(open_page, export, tmp_path, name, info, typed, shown):
    folder = shutil.copytree(export(name).folder, tmp_path / "1")
    (folder / "export.json").write_text(json.dumps(info))
    page = open_page(tmp_path)
    send(page, **typed)
    assert page.is_hidden("#error")
    result = " ".join(page.inner_text("#result").split())
    assert re.match(shown, result, re.IGNORECASE), result
