"""Annotated texts of JSON and Parquet files, and their spans as tags of words."""

import json
import random
import time

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.ner.data import NerSettings, read_conll, read_data, write_conll
from keras_bert.tasks.ner.span_records import (
    SPAN_KEYS,
    AnnotatedText,
    read_annotated,
    tagged_sentences,
)
from keras_bert.tasks.ner.tag_schemes import Sentence, entities
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab
from tests.tasks.ner.test_task import run

TEXT = "Ann met 😀 Bo Li."
SPANS = [("PER", 0, 3), ("PER", 10, 15)]


@pytest.fixture
def read(tmp_path):
    """Returns a function that writes objects as lines and reads them."""

    def read(*records, name="train.jsonl"):
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (tmp_path / name).write_text("\n".join(lines))
        return read_annotated(tmp_path / name)[0]

    return read


def label_studio(*values, **annotation):
    results = [{"type": "labels", "value": value} for value in values]
    choices = {"type": "choices", "value": {"choices": ["news"]}}
    return {
        "data": {"text": TEXT},
        "annotations": [
            {"was_cancelled": True, "result": []},
            {"result": [choices, *results]} | annotation,
        ],
    }


@pytest.mark.parametrize(
    "record",
    [
        {
            "text": TEXT,
            "entities": [{"start": start, "end": end, "type": kind} for kind, start, end in SPANS],
        },
        {"id": 1, "text": TEXT, "label": [[start, end, kind] for kind, start, end in SPANS]},
        {"id": 1, "text": TEXT, "labels": [[start, end, kind] for kind, start, end in SPANS]},
        {
            "text": TEXT,
            "entities": [
                {"id": 7, "label": kind, "start_offset": start, "end_offset": end}
                for kind, start, end in SPANS
            ],
            "relations": [],
        },
        {
            "text": TEXT,
            "tokens": [],
            "spans": [
                {"start": start, "end": end, "label": kind, "token_start": 0, "token_end": 0}
                for kind, start, end in SPANS
            ],
            "answer": "accept",
        },
        {
            "text": TEXT,
            "ents": [{"start": start, "end": end, "label": kind} for kind, start, end in SPANS],
            "spans": {},
        },
        label_studio(
            *({"start": start, "end": end, "labels": [kind]} for kind, start, end in SPANS)
        ),
        {
            "text": TEXT,
            "label": [{"start": start, "end": end, "labels": [kind]} for kind, start, end in SPANS],
        },
    ],
    ids=[
        "own",
        "doccano",
        "old doccano",
        "doccano relations",
        "prodigy",
        "spacy",
        "studio",
        "studio min",
    ],
)
def test_forms_of_annotation_tools(read, record):
    (text,) = read(record)
    assert (text.text, text.spans, text.line) == (TEXT, SPANS, 1)
    (text,) = read(json.dumps([record], indent=2), name="export.json")
    assert (text.spans, text.where.split("/")[-1]) == (SPANS, "export.json, item 1")


def test_offsets_in_utf16_are_recognized_by_the_text_of_the_span(read):
    (text,) = read(label_studio({"start": 11, "end": 16, "labels": ["PER"], "text": "Bo Li"}))
    assert text.spans == SPANS[1:]
    spans = [{"start": 11, "end": 17, "label": "PER", "text": "Bo Li."}]  # beyond len(TEXT)
    assert read({"text": TEXT, "spans": spans})[0].spans == [("PER", 10, 16)]
    value = {"start": 0, "end": 3, "labels": ["PER"], "text": "Bo Li"}
    with pytest.raises(InputError, match="has the text 'Bo Li', but the characters 0 to 3 are 'An"):
        read(label_studio(value))


def hypertext(start, end, text, key="hypertextlabels"):
    """Returns a result as Label Studio writes it for HyperText."""
    value = {"start": "/p[1]/text()[1]", "end": "/p[1]/text()[1]", "startOffset": 1, "endOffset": 2}
    value |= {"globalOffsets": {"start": start, "end": end}, "text": text, key: ["PER"]}
    return {"type": "hypertextlabels", "value": value}


def test_hypertext_has_offsets_in_the_text_without_tags(read):
    html = "<div><p class='a'>Ann &amp; Bo<br/>met</p>\n<p>😀 <b>Bo</b> Li.</p></div>"
    text = "Ann & Bo\nmet\n😀 Bo Li."
    results = [hypertext(0, 3, "Ann"), hypertext(15, 20, "Bo Li", "htmllabels")]
    in_utf16 = hypertext(16, 21, "Bo Li")
    annotated, plain, also_utf16 = read(
        {"data": {"html": html}, "annotations": [{"result": results}]},
        {"data": {"html": "<i>Nobody</i>."}, "annotations": [{"result": []}]},
        {"data": {"text": text}, "annotations": [{"result": [in_utf16]}]},
    )
    assert (annotated.text, annotated.spans) == (text, [("PER", 0, 3), ("PER", 15, 20)])
    assert (plain.text, plain.spans) == ("Nobody.", [])
    assert also_utf16.spans == [("PER", 15, 20)]
    minimal = {"text": text, "label": [each["value"] for each in results]}
    assert read(minimal)[0].spans == annotated.spans
    with pytest.raises(InputError, match="has the text 'Bo', but the characters 0 to 3 are 'Ann'"):
        read({"data": {"html": html}, "annotations": [{"result": [hypertext(0, 3, "Bo")]}]})


def test_spans_with_a_label_that_are_not_read_are_counted(read, caplog):
    paragraph = {"start": "0", "end": "0", "startOffset": 0, "endOffset": 3}
    without_offsets = hypertext(0, 3, "Ann")
    del without_offsets["value"]["globalOffsets"]
    read_value = {"start": 0, "end": 3, "labels": ["PER"]}
    results = [
        {"type": "labels", "value": read_value},
        {"type": "paragraphlabels", "value": paragraph | {"paragraphlabels": ["PER"]}},
        {"type": "choices", "value": {"start": 0, "end": 3, "choices": ["happy"]}},
        {"type": "choices", "value": {"choices": ["news"]}},
        {"type": "relation", "from_id": "a", "to_id": "b", "labels": ["wife"]},
        without_offsets,
    ]
    others = [{"result": results[:1]}, {"result": results[:1], "was_cancelled": True}]
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    texts = read(
        {"text": TEXT, "label": [], "tokens": [{"text": "Ann", "start": 0, "end": 3, "id": 0}]},
        {
            "data": {"text": TEXT},
            "annotations": [{"result": results}, *others],
            "predictions": others,
        },
        {
            "text": TEXT,
            "entities": spans,
            "spans": {"sc": spans},
            "label": [[0, 3, "PER"], [4, 7, "X"]],
        },
        {"text": TEXT, "ner": spans, "relations": [{"head": 0, "child": 1, "label": "wife"}]},
    )
    assert [text.spans for text in texts] == [[], SPANS[:1], SPANS[:1], None]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.split("train.jsonl: ")[1] == (
        "ignored spans with a label: 1 of the type paragraphlabels, 1 of the type choices, 1 of "
        "the type hypertextlabels, 1 in further annotations, 1 in 'spans', 2 in 'label', 1 in "
        "'ner'; the first is in line 2. Their words are read as words outside of entities"
    )


def test_line_break_in_the_text_of_a_span(read):
    record = label_studio({"start": 0, "end": 5, "labels": ["X"], "text": "a\\nb c"})
    record["data"] = {"body": "a\nb c"}
    assert read(record)[0].spans == [("X", 0, 5)]


def test_several_labels_of_a_span_are_several_spans(read):
    (text,) = read(label_studio({"start": 0, "end": 3, "labels": ["PER", "X"]}))
    assert text.spans == [("PER", 0, 3), ("X", 0, 3)]


def test_rejected_and_unannotated_texts(read, tmp_path):
    accepted, plain, cancelled = read(
        {"text": "One.", "answer": "accept"},
        {"text": "Two.", "answer": "reject", "spans": "any"},
        {"text": "Three."},
        {"data": {"text": "Four."}, "annotations": []},
    )
    assert (accepted.spans, plain.spans, cancelled.spans) == ([], None, None)
    assert (plain.line, cancelled.line) == (3, 4)
    assert read_annotated(tmp_path / "train.jsonl")[1] == 1


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ([0, 3], r"label\[0\] is \[0, 3\]; expected a span such as"),
        ("PER", r"label\[0\] is 'PER'; expected a span such as"),
        (["0", "3", "PER"], "with whole numbers"),
        ([0, 3.0, "PER"], "with whole numbers"),
        ([False, True, "PER"], "with whole numbers"),
        ([0, 3, None], "without a type"),
        ([0, 3, " "], "without a type"),
        ([0, 3, []], "without a type"),
        ([3, 3, "PER"], r"label\[0\] has the characters 3 to 3; expected 0 <= start < end <= 16"),
        ([0, 17, "PER"], "has the characters 0 to 17; expected 0 <= start < end <= 16, the length"),
        ([-3, 1, "PER"], "has the characters -3 to 1; expected 0 <= start"),
        ({"start": "/p[1]", "end": 3, "label": "PER"}, "with whole numbers"),
    ],
)
def test_invalid_span_is_rejected_with_its_line(read, span, message):
    with pytest.raises(InputError, match=rf"train\.jsonl, line 2: .*{message}") as error:
        read({"text": "Good.", "label": []}, {"text": TEXT, "label": [span]})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no texts; expected JSON objects"),
        ("[]", "contains no texts"),
        ('{"text": "x", "answer": "reject"}', "contains only 1 rejected texts"),
        ('{"text": "x"', "line 1: is not JSON: "),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "item 1: expected a JSON object, got 1"),
        ('{"label": []}', "line 1: expected a text in 'text', got None; its keys are label"),
        ('{"text": 1}', "line 1: expected a text in 'text', got 1"),
        (
            '{"id": 1, "data": {"a": "x", "b": "y"}}',
            "expected a text in 'text', got None; the keys of data are a, b$",
        ),
        ('{"text": "x", "label": "PER"}', "label is 'PER'; expected a list of spans"),
        ('{"text": "x", "annotations": [1]}', r"annotations\[0\] is 1; expected an object"),
        ('{"text": "x", "annotations": [{}]}', r"annotations\[0\].result is None; expected a list"),
        ('{"text": "\\ud83d"}', "half of a surrogate pair at character 0"),
        (b"\xff", "expected UTF-8"),
    ],
)
def test_invalid_file_is_rejected(tmp_path, content, message):
    path = tmp_path / "train.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=rf"train\.jsonl.*{message}") as error:
        read_annotated(path)
    assert "\n" not in str(error.value)


# Parquet and Arrow files


def write_table(path, rows):
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("key", SPAN_KEYS)
@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
def test_tables_have_the_spans_of_json_objects(tmp_path, name, key):
    spans = [{"start": start, "end": end, "label": kind} for kind, start, end in SPANS]
    rows = [
        {"id": 7, "text": TEXT, key: spans},
        {"id": 8, "text": "No entity.", key: []},
        {"id": 9, "text": "Not annotated.", key: None},
    ]
    texts, num_rejected = read_annotated(write_table(tmp_path / name, rows))
    assert [text.text for text in texts] == [row["text"] for row in rows]
    assert [text.spans for text in texts] == [SPANS, [], None]
    assert (texts[2].where, texts[2].line) == (f"{tmp_path / name}, row 3", 3)
    assert num_rejected == 0


def test_columns_with_spans_that_are_not_read_are_named(tmp_path, caplog):
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    path = write_table(tmp_path / "a.parquet", [{"text": TEXT, "spans": [], "marks": spans}])
    assert read_annotated(path)[0][0].spans == []
    assert "a.parquet: ignored spans with a label: 1 in 'marks'; the first is in row 1" in (
        caplog.text
    )


def test_rejected_texts_of_a_table(tmp_path):
    rows = [{"text": "One.", "answer": answer} for answer in ("accept", "reject", None)]
    texts, num_rejected = read_annotated(write_table(tmp_path / "train.parquet", rows))
    assert ([text.spans for text in texts], num_rejected) == ([[], None], 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"entities": []},
            r"a\.parquet: has no column 'text'; expected one, among the columns: ent",
        ),
        ({"text": None, "spans": []}, r"a\.parquet, row 1: expected a text in 'text', got None"),
        ({"text": "a", "label": "PER"}, r"row 1: label is 'PER'; expected a list of spans"),
        ({"text": "a", "label": [1]}, r"row 1: label\[0\] is 1; expected a span such as"),
        ({"text": "a", "spans": {"start": 0}}, r"row 1: spans is {'start': 0}; expected a list"),
        (
            {"text": "a", "spans": [{"start": 0, "end": 2, "label": "PER"}]},
            r"row 1: spans\[0\] has the characters 0 to 2; expected 0 <= start < end <= 1",
        ),
    ],
)
def test_invalid_row_is_rejected_with_its_number(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_annotated(write_table(tmp_path / "a.parquet", [row]))


# --- spans to tags of words ---

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


# --- a corpus as columns and as spans ---


def sentences_with_equal_words(
    sentences: list[Sentence], tokenizer: BertTokenizer
) -> list[Sentence]:
    """Returns the sentences whose text, with single spaces, is split into the same words."""
    texts = [AnnotatedText("", index, " ".join(s.words), []) for index, s in enumerate(sentences)]
    split, _ = tagged_sentences(texts, tokenizer)
    words = {sentence.line: sentence.words for sentence in split}
    return [s for index, s in enumerate(sentences) if words.get(index) == s.words]


@pytest.mark.slow
def test_wnut_17_as_columns_and_as_spans_trains_to_the_same_bits(
    shared_data, make_checkpoint, tmp_path
):
    vocab = load_vocab(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    tokens = [token for token in vocab if token not in SPECIAL_TOKENS]
    bert = make_checkpoint(tmp_path / "bert", tokens, max_position_embeddings=64)
    sentences = read_conll(shared_data / "ner" / "wnut17" / "wnut17train.conll")
    kept = sentences_with_equal_words(
        sentences, BertTokenizer(load_vocab(bert / "vocab.txt"), do_lower_case=True)
    )
    print(
        f"WNUT-17: {len(sentences) - len(kept)} of {len(sentences)} sentences are excluded, "
        "because their text is split into other words"
    )
    assert len(kept) > 900
    assert {tag for sentence in kept for tag in sentence.tags} == {
        tag for sentence in sentences for tag in sentence.tags
    }
    write_conll(tmp_path / "train.conll", [(s.words, s.tags) for s in kept])
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
            num_train_epochs=24 / len(kept),  # 3 steps of 8 sentences.
        )
        weights[name] = (tmp_path / f"out-{name}" / "model" / "model.safetensors").read_bytes()
    assert weights["train.conll"] == weights["train.jsonl"]
