"""Tests of converting texts with spans to tagged words, and of training on them."""

import json
import random
import time

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.data import NerSettings, read_data
from keras_bert.tasks.ner.span_records import AnnotatedText
from keras_bert.tasks.ner.span_sentences import tagged_sentences
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS
from tests.tasks.ner.test_fine_tuning import run

WORDS = ["ann", "bo", "li", "met", "in", "new", "york", "-", "."]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer([*SPECIAL_TOKENS, *WORDS])


def convert(tokenizer, *texts):
    annotated = [
        AnnotatedText(f"a.jsonl, line {line}", line, text, spans)
        for line, (text, spans) in enumerate(texts, start=1)
    ]
    return tagged_sentences(annotated, tokenizer)


def test_spans_become_tags_of_words(tokenizer):
    text = "Ann met Bo Li\nin New York."
    spans = [("LOC", 17, 25), ("PER", 0, 3), ("PER", 7, 13), ("PER", 0, 3)]  # " Bo Li", twice
    (sentence,), counts = convert(tokenizer, (text, spans))
    assert sentence.words == ("Ann", "met", "Bo", "Li", "in", "New", "York", ".")
    assert sentence.tags == ("B-PER", "O", "B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O")
    assert not any(counts.to_dict().values())


def test_spans_that_do_not_fit_are_counted_and_named(tokenizer, caplog):
    text = "Ann met Bo-Li in New York ."
    spans = [("PER", 8, 10), ("PER", 1, 2), ("LOC", 21, 25), ("LOC", 17, 25), ("X", 25, 26)]
    (sentence,), counts = convert(tokenizer, (text, spans))
    assert sentence.words == ("Ann", "met", "Bo-Li", "in", "New", "York", ".")
    assert sentence.tags == ("B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "O")
    assert counts.to_dict() == {
        "misaligned_spans": 2,
        "overlapping_spans": 1,
        "spans_without_words": 1,
    }
    counts.log()
    assert (
        "spans extended to whole words: 2, the first: a.jsonl, line 1, characters 8 to 10, 'Bo', "
        "became 'Bo-Li'; a.jsonl, line 1, characters 1 to 2, 'n', became 'Ann'"
    ) in caplog.text
    assert "spans dropped because they overlap a longer one: 1, the first: a.jsonl" in caplog.text
    assert "characters 21 to 25, 'York' (LOC)" in caplog.text
    assert "spans dropped because they contain no word: 1, the first: a.jsonl" in caplog.text


def test_texts_without_words_are_skipped(tokenizer):
    sentences, _ = convert(tokenizer, (" \n", []), ("", []), ("Ann", None))
    assert [(s.words, s.tags, s.line) for s in sentences] == [(("Ann",), (), 3)]
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: contains no words"):
        convert(tokenizer, ("\u200b", []))


def spans_of_conll(path):
    """Converts a column file to JSON lines of the same words."""
    lines = []
    for sentence in read_conll(path):
        starts = [sum(len(w) + 1 for w in sentence.words[:n]) for n in range(len(sentence.words))]
        label = [
            [starts[first], starts[last - 1] + len(sentence.words[last - 1]), kind]
            for kind, first, last in entities(sentence.tags)
        ]
        lines.append(json.dumps({"text": " ".join(sentence.words), "label": label}) + "\n")
    return "".join(lines)


@pytest.mark.slow
def test_columns_and_spans_train_to_the_same_bits(ner_files, tmp_path):
    names = ("train", "dev", "test")
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text(spans_of_conll(ner_files / f"{name}.conll"))
    results = [run(ner_files, tmp_path / "conll", num_train_epochs=1.0)]
    flags = ("train_file", "eval_file", "test_file")
    spans = {flag: str(tmp_path / f"{name}.jsonl") for flag, name in zip(flags, names, strict=True)}
    results.append(run(ner_files, tmp_path / "jsonl", num_train_epochs=1.0, **spans))
    for name in ("model/model.safetensors", "model/config.json", "predictions.conll"):
        one, two = ((tmp_path / form / name).read_bytes() for form in ("conll", "jsonl"))
        assert one == two, name
    counts = {
        f"{name}_{kind}": 0
        for name in names
        for kind in ("misaligned_spans", "overlapping_spans", "spans_without_words")
    }
    assert results[1] == results[0] | counts
    assert json.loads((tmp_path / "jsonl/results.json").read_text()) == results[1]


DO = {"do_train": False, "do_eval": False, "do_predict": True}


def test_texts_without_spans_can_be_predicted_but_not_scored(tokenizer, tmp_path, caplog):
    path = tmp_path / "new.jsonl"
    path.write_text('{"text": "Ann met Bo."}\n{"text": "Bo", "spans": []}\n')
    ner = NerSettings(test_file=str(path), eval_file=str(path))
    do = DO | {"new_tokenizer": lambda: tokenizer}
    test = read_data(ner, **do).test
    assert (len(test.sentences), test.tags, test.counts) == (2, None, {})
    dev = read_data(ner, **do | {"do_eval": True, "do_predict": False}).dev
    assert [s.words for s in dev.sentences] == [("Bo",)]
    assert "skipped 1 texts without annotations; the first is" in caplog.text
    path.write_text('{"text": "Ann met Bo."}\n')
    with pytest.raises(InputError, match=r"new\.jsonl, line 1: has no spans, and neither have"):
        read_data(ner, **do | {"do_eval": True})


def fitted_by_definition(words, spans):
    """Extends spans to whole words and keeps the longest ones, by comparing all with all."""
    fitted = []
    for kind, start, end in dict.fromkeys(spans):
        covered = [word for word in words if word[0] < end and word[1] > start]
        if covered:
            fitted.append((kind, covered[0][0], covered[-1][1]))
    kept = []
    for kind, start, end in sorted(fitted, key=lambda span: (span[1] - span[2], span[1])):
        if all(start >= other_end or end <= other for _, other, other_end in kept):
            kept.append((kind, start, end))
    return len(fitted) - len(kept), sorted((start, end, kind) for kind, start, end in kept)


def test_random_spans_fit_as_by_definition(tokenizer):
    rng = random.Random(0)
    texts, num_overlapping, expected = [], 0, []
    for _ in range(200):
        parts = [rng.choice(["ann", "bo", "-", ".", " ", "  "]) + " " for _ in range(20)]
        text = "ann " + "".join(parts)
        starts = [start for start in range(len(text)) if f" {text}"[start] == " " != text[start]]
        words = [(start, text.index(" ", start)) for start in starts]
        spans = []
        for _ in range(rng.randint(1, 12)):
            start = rng.randrange(len(text) - 1)
            spans.append(
                (rng.choice("XY"), start, rng.randint(start + 1, min(start + 9, len(text))))
            )
        texts.append((text, spans))
        number, kept = fitted_by_definition(words, spans)
        num_overlapping += number
        expected.append((words, kept))
    sentences, counts = convert(tokenizer, *texts)
    assert counts.to_dict()["overlapping_spans"] == num_overlapping
    for sentence, (words, kept) in zip(sentences, expected, strict=True):
        found = [(words[a][0], words[b - 1][1], kind) for kind, a, b in entities(sentence.tags)]
        assert found == kept


def test_time_of_aligning_spans_grows_with_their_number(tokenizer):
    num_words = 40_000
    text = "ann met " * (num_words // 2)
    spans = [("PER", start, start + 3) for start in range(0, len(text), 40)]  # each fifth word
    start = time.process_time()
    (sentence,), counts = convert(tokenizer, (text, spans))
    assert time.process_time() - start < 3
    assert (len(sentence.words), sentence.tags.count("B-PER")) == (num_words, len(spans))
    assert not any(counts.to_dict().values())
