"""Texts with entities, in JSON and Parquet files, as tags of words."""

import json
import random
import time

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.ner.data import NerSettings, read_conll, read_data, write_conll
from keras_bert.tasks.ner.spans import split_words
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab
from tests.tasks.ner.test_task import run

TEXT = "Ann met 😀 Bo Li."
SPANS = [("PER", 0, 3), ("PER", 10, 15)]
WORDS = ["ann", "bo", "li", "met", "in", "new", "york", "-", "."]


def annotated(text, spans):
    return {
        "text": text,
        "entities": [{"start": start, "end": end, "type": kind} for kind, start, end in spans],
    }


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture
def read(tmp_path, tokenizer):
    """Returns a function that writes objects to a file and reads them."""

    def read(*records, name="a.jsonl", **do):
        path = tmp_path / name
        if path.suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist(records), path)
        elif path.suffix == ".arrow":
            table = pa.Table.from_pylist(records)
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        elif path.suffix == ".json":
            path.write_text(json.dumps(records, indent=2))
        else:
            lines = [
                record if isinstance(record, str) else json.dumps(record) for record in records
            ]
            path.write_text("\n".join(lines))
        do = {"do_train": False, "do_eval": True, "do_predict": False} | do
        splits = read_data(NerSettings(eval_file=str(path)), new_tokenizer=lambda: tokenizer, **do)
        return splits.dev or splits.test

    return read


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow"])
def test_texts_with_entities_become_tags_of_words(read, name):
    file = read(annotated(TEXT, SPANS), annotated("No one.", []), name=name)
    first, second = file.sentences
    assert first.words == ("Ann", "met", "😀", "Bo", "Li", ".")
    assert file.tags == [["B-PER", "O", "O", "B-PER", "I-PER", "O"], ["O", "O", "O"]]
    unit = {"a.jsonl": "line", "a.json": "item"}.get(name, "row")
    assert (second.where(1), second.document) == (f"{unit} 2, word 2", 1)
    assert not any(file.counts.values())


def test_texts_without_entities_can_be_predicted_but_not_scored(read):
    records = ({"text": "Ann met Bo."}, annotated("Bo", []))
    file = read(*records, do_eval=False, do_predict=True)
    assert (len(file.sentences), file.tags, file.counts) == (2, None, {})
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: 'entities' is None; expected a list"):
        read(*records)


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        ("PER", "'PER'; expected an entity such as"),
        ({"start": 0, "end": 3}, "expected an entity such as"),
        ({"start": 0, "end": 3, "type": " "}, "expected an entity such as"),
        ({"start": "0", "end": 3, "type": "PER"}, "expected an entity such as"),
        ({"start": 0, "end": 3.0, "type": "PER"}, "expected an entity such as"),
        ({"start": 3, "end": 3, "type": "PER"}, "expected 0 <= start < end <= 16, the length"),
        ({"start": 0, "end": 17, "type": "PER"}, "expected 0 <= start < end <= 16"),
        ({"start": -3, "end": 1, "type": "PER"}, "expected 0 <= start < end <= 16"),
    ],
)
def test_invalid_entity_is_rejected_with_its_line(read, entity, message):
    message = rf"a\.jsonl, line 2: entities\[0\] is .*{message}"
    with pytest.raises(InputError, match=message) as error:
        read(annotated("Good.", []), {"text": TEXT, "entities": [entity]})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no texts; expected texts"),
        ("[]", "contains no texts"),
        ('{"text": "x"', "line 1: is not JSON: "),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "item 1: expected a JSON object, got 1"),
        ('{"entities": []}', "line 1: expected a text in 'text', got None"),
        ('{"text": "x", "entities": "PER"}', "'entities' is 'PER'; expected a list of entities"),
        ('{"text": "\u200b", "entities": []}', "contains no words"),
    ],
)
def test_invalid_file_is_rejected(read, content, message):
    with pytest.raises(InputError, match=rf"a\.jsonl.*{message}") as error:
        read(content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sentence": "a"}, r"a\.parquet: has the columns sentence; expected some of text, entit"),
        ({"text": None, "entities": []}, r"a\.parquet, row 1: expected a text in 'text', got None"),
        ({"text": "a", "entities": [1]}, r"row 1: entities\[0\] is 1; expected an entity such as"),
    ],
)
def test_invalid_row_is_rejected_with_its_number(read, row, message):
    with pytest.raises(InputError, match=message):
        read(row, name="a.parquet")


def test_white_space_and_repeated_entities_are_ignored(read):
    spans = [("LOC", 17, 25), ("PER", 0, 3), ("PER", 7, 13), ("PER", 0, 3)]  # " Bo Li", twice
    file = read(annotated("Ann met Bo Li\nin New York.", spans))
    assert file.tags == [["B-PER", "O", "B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"]]
    assert not any(file.counts.values())


def test_entities_that_do_not_fit_are_counted_and_named(read, caplog):
    spans = [("PER", 8, 10), ("PER", 1, 2), ("LOC", 21, 25), ("LOC", 17, 25), ("X", 25, 26)]
    file = read(annotated("Ann met Bo-Li in New York .", spans), annotated(" ", []))
    assert file.sentences[0].words == ("Ann", "met", "Bo-Li", "in", "New", "York", ".")
    assert file.tags == [["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "O"]]
    assert file.counts == {
        "misaligned_spans": 2,
        "overlapping_spans": 1,
        "spans_without_words": 1,
    }
    assert "spans extended to whole words: 2, the first: " in caplog.text
    assert "a.jsonl, line 1, characters 8 to 10, 'Bo', became 'Bo-Li'; " in caplog.text
    assert "characters 1 to 2, 'n', became 'Ann'" in caplog.text
    assert "spans dropped because they overlap a longer one: 1, the first: " in caplog.text
    assert "characters 21 to 25, 'York' (LOC)" in caplog.text
    assert "spans dropped because they contain no word: 1, the first: " in caplog.text
    assert "skipped 1 texts without words" in caplog.text


def spans_of_conll(path):
    """Converts a column file to JSON lines of the same words."""
    lines = []
    for sentence in read_conll(path):
        starts = [sum(len(w) + 1 for w in sentence.words[:n]) for n in range(len(sentence.words))]
        spans = [
            (kind, starts[first], starts[last - 1] + len(sentence.words[last - 1]))
            for kind, first, last in entities(sentence.tags)
        ]
        lines.append(json.dumps(annotated(" ".join(sentence.words), spans)) + "\n")
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


def fitted_by_definition(words, spans):
    """Extends spans to whole words and keeps the longest ones, by comparing all with all."""
    fitted = []
    for kind, start, end in dict.fromkeys(spans):
        covered = [word for word in words if word[0] < end and word[1] > start]
        if covered:
            fitted.append((kind, covered[0][0], covered[-1][1]))
    separate = []
    for kind, start, end in sorted(fitted, key=lambda span: (span[1] - span[2], span[1])):
        if all(start >= other_end or end <= other for _, other, other_end in separate):
            separate.append((kind, start, end))
    return len(fitted) - len(separate), sorted((a, b, kind) for kind, a, b in separate)


def test_random_spans_fit_as_by_definition(read):
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
        texts.append(annotated(text, spans))
        number, separate = fitted_by_definition(words, spans)
        num_overlapping += number
        expected.append((words, separate))
    file = read(*texts)
    assert file.counts["overlapping_spans"] == num_overlapping
    for tags, (words, separate) in zip(file.tags, expected, strict=True):
        assert [(words[a][0], words[b - 1][1], kind) for kind, a, b in entities(tags)] == separate


def test_time_of_aligning_spans_grows_with_their_number(read):
    num_words = 40_000
    text = "ann met " * (num_words // 2)
    spans = [("PER", start, start + 3) for start in range(0, len(text), 40)]  # each fifth word
    start = time.process_time()
    file = read(annotated(text, spans))
    assert time.process_time() - start < 3
    assert (len(file.tags[0]), file.tags[0].count("B-PER")) == (num_words, len(spans))
    assert not any(file.counts.values())


# --- a corpus as columns and as spans ---


@pytest.mark.slow
def test_wnut_17_as_columns_and_as_spans_trains_to_the_same_bits(
    shared_data, make_checkpoint, tmp_path
):
    vocab = load_vocab(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    tokens = [token for token in vocab if token not in SPECIAL_TOKENS]
    bert = make_checkpoint(tmp_path / "bert", tokens, max_position_embeddings=64)
    sentences = read_conll(shared_data / "ner" / "wnut17" / "wnut17train.conll")
    texts = [" ".join(sentence.words) for sentence in sentences]
    words = split_words(texts, BertTokenizer(load_vocab(bert / "vocab.txt"), do_lower_case=True))
    equal = [  # The sentences whose text is split into the same words.
        sentence
        for sentence, text, spans in zip(sentences, texts, words, strict=True)
        if sentence.words == tuple(text[start:end] for start, end in spans)
    ]
    assert len(equal) > 900
    assert {tag for sentence in equal for tag in sentence.tags} == {
        tag for sentence in sentences for tag in sentence.tags
    }
    write_conll(tmp_path / "train.conll", [(s.words, s.tags) for s in equal])
    (tmp_path / "train.jsonl").write_text(spans_of_conll(tmp_path / "train.conll"))
    weights = {}
    for name in ("train.conll", "train.jsonl"):
        run(
            tmp_path,
            tmp_path / f"out-{name}",
            train_file=str(tmp_path / name),
            eval_file="",
            test_file="",
            max_seq_length=64,
            num_train_epochs=24 / len(equal),  # 3 steps of 8 sentences.
        )
        weights[name] = (tmp_path / f"out-{name}" / "model" / "model.safetensors").read_bytes()
    assert weights["train.conll"] == weights["train.jsonl"]
