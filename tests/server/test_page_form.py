"""The form of the page in a real browser: errors, empty fields, curl, colors and directions."""

import json
import re
import subprocess

import pytest

from keras_bert.server.protocol import RestError
from tests.server.conftest import FakeVersion, send

pytestmark = pytest.mark.slow  # Starts a browser.


@pytest.mark.parametrize(
    ("info", "texts", "message"),
    [
        ({"task": "classification"}, {"text": " "}, "Enter a text."),
        (
            {"task": "classification", "pair": True},
            {"text": "a", "text_pair": "\n"},
            "Enter the second text.",
        ),
        ({"task": "question_answering"}, {"question": ""}, "Enter a question."),
        (
            {"task": "question_answering"},
            {"question": "a", "context": ""},
            "Enter a context: the text that contains the answer.",
        ),
        ({"task": "embedding"}, {"first": ""}, "Enter the first text."),
    ],
)
def test_empty_fields_are_named_and_not_sent(visit, info, texts, message):
    page = visit(info)
    page.locator("textarea").first.wait_for()  # The form is built when export.json has arrived.
    samples = page.locator("textarea").evaluate_all("all => all.map(input => input.value)")
    assert all(samples)
    send(page, **texts)
    assert page.inner_text("#error") == message
    assert page.evaluate("document.activeElement.ariaInvalid") == "true"
    assert page.evaluate("document.activeElement.id") == [*texts][-1]
    assert not page.posts
    page.click("#example")
    assert page.locator("textarea").evaluate_all("all => all.map(input => input.value)") == samples


def test_examples_of_the_model_are_shown_in_turn(visit):
    examples = [["one", "1"], ["two", "2"], ["three"]]
    page = visit({"task": "classification", "pair": True, "examples": examples})
    page.wait_for_selector("#form:visible")
    shown = []
    for _ in range(3):
        values = page.locator("textarea").evaluate_all("all => all.map(input => input.value)")
        shown.append(values)
        page.click("#example")
    assert shown == [["one", "1"], ["two", "2"], ["one", "1"]], "a row with other fields is ignored"


def test_models_are_linked(browser, serve_here):
    specs = {
        "signatures": {"serving_default": {"inputs": {"text": ["string", [-1]]}, "outputs": {}}}
    }
    models = {"a": FakeVersion(), "b & c": FakeVersion(export={"task": "ner", **specs})}
    page = browser.new_page(base_url=serve_here(models).url)
    page.goto("/")
    page.locator("#about", has_text="Model a, version 1").wait_for()
    page.click("text=b & c")
    page.locator("#about", has_text="Model b & c, version 1").wait_for()
    assert page.inner_text("h1") == "Named entities"
    page.close()


def test_request_is_shown_as_a_curl_command(visit):
    page = visit({"task": "classification"}, {"score": 1.0})
    assert page.is_hidden("#request")
    text = 'it\'s "quoted" \\ $HOME\nnew'
    send(page, text=text)
    page.click("summary")
    # A shell reads the command as these arguments.
    script = "curl() { printf '%s\\0' \"$@\"; }\n" + page.locator("#curl").text_content()
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    url, option, body, _ = printed.stdout.split("\0")
    assert (url, option) == (f"{page.url}v1/models/my%20model:predict", "-d")
    assert json.loads(body) == {"instances": [{"text": text}]}
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    page.locator("#copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#curl")


def test_text_is_shown_in_its_direction(visit):
    info = {"task": "classification", "labels": ["a"]}
    page = visit(info, lambda text: {"label": text, "probabilities": [1.0]})
    for text, direction in (("\u0645\u0631\u062d\u0628\u0627", "rtl"), ("hello", "ltr")):
        send(page, text=text)
        for shown in ("#text", ".large"):
            style = page.eval_on_selector(shown, "each => getComputedStyle(each).direction")
            assert style == direction, shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_borders_have_a_contrast_of_three(visit, scheme):
    page = visit({"task": "ner"}, scheme=scheme)
    page.wait_for_selector("#form:visible")
    colors = page.evaluate(
        """() => {
          const style = (selector) => getComputedStyle(document.querySelector(selector));
          return {
            borders: ["#text", "form", "#example", "kbd"].map((each) => style(each).borderTopColor),
            papers: ["body", "form", "#text"].map((each) => style(each).backgroundColor),
          };
        }"""
    )
    for border in colors["borders"]:
        for paper in colors["papers"]:
            light, dark = sorted((luminance(border), luminance(paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, (border, paper)


def luminance(color: str) -> float:
    """Computes the relative luminance of a CSS color, as WCAG 2 defines it."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", color)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_errors_are_shown_and_keyboard_can_submit(visit):
    def reject(text):
        if text == "boom":
            raise RestError("a boom")
        return {"score": 1}

    page = visit({"task": "classification", "pair": False}, reject)
    page.locator("#text:focus").wait_for()
    page.fill("#text", "boom")
    with page.expect_response("**:predict"):
        page.keyboard.press("Control+Enter")
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error") == "a boom"
    send(page, text="well")
    page.wait_for_selector("#error", state="hidden")
    assert page.inner_text(".large") == "1"
    # Chromium logs each failed request to its console.
    assert [text for text in page.console_messages if "400" not in text] == []
    page.console_messages.clear()
    for label in page.locator("label").all():
        assert page.locator(f"#{label.get_attribute('for')}").count() == 1


def test_unknown_task_is_reported(visit):
    page = visit({"task": "poetry"})
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error") == 'This page does not support the task "poetry".'
    assert page.is_hidden("#form")
