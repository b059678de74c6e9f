"""Tests of reading texts with spans from the exports of annotation tools."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.span_records import SPAN_KEYS, read_annotated

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
