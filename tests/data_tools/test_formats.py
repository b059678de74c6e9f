"""Tests of the corpus formats: JSON lines, WikiExtractor, Project Gutenberg, Parquet and Arrow."""

import bz2
import json
import subprocess
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools import formats, sentences
from data_tools.corpus import Reading, find_input_files, read_documents
from data_tools.lines import OddInput
from keras_bert.errors import InputError
from tests.damaged_files import write_corrupt_parquet


def json_lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


# JSON lines


def test_json_line_is_a_document_and_its_line_ends_end_paragraphs(read):
    content = json_lines(
        {"text": "One. Two.\nA heading\n\nThree.", "id": 1}, {"id": 2, "text": "Four."}
    )
    assert read(content, "jsonl") == ([["One.", "Two.", "A heading", "Three."], ["Four."]], {})


def test_text_field_names_the_json_field(read):
    content = json_lines({"text": "Not this.", "body": "今天很好。我们去吧！"})
    documents, _ = read(content, "jsonl", text_field="body", language="zh")
    assert documents == [["今天很好。", "我们去吧！"]]


def test_blank_lines_are_skipped_and_empty_texts_are_empty_documents(read):
    content = "\n" + json_lines({"text": ""}, {"text": " \n"}, {"text": "One."}) + "\n \n"
    assert read(content, "jsonl") == ([["One."]], {"empty_documents": 2})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "One."', r"not JSON: Expecting ',' delimiter"),
        ("[1, 2]", "a JSON list; expected an object"),
        ('{"body": "One."}', "no field 'text' in the JSON object"),
        ('{"text": null}', "field 'text' is a NoneType; expected a string"),
        ("[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    ],
)
def test_malformed_lines_are_counted_up_to_the_allowed_share(read, line, message):
    good = json_lines(*[{"text": "One."}] * 10)
    documents, odd = read(good + line + "\n", "jsonl")
    assert (documents, odd) == ([["One."]] * 10, {"malformed_lines": 1})
    share = r"1 of 11 lines are bad, more than --max_bad_line_share=0\.05 allows$"
    with pytest.raises(InputError, match=rf"line 11: {message}.* \(byte offset 170 of .*: {share}"):
        read(good + line + "\n", "jsonl", max_bad_line_share=0.05)


def test_lone_surrogates_are_replaced(read):
    content = '{"text": "A \\ud83d one. A \\ud83d\\ude00 two."}\n'
    assert read(content, "jsonl") == ([["A \ufffd one.", "A 😀 two."]], {"lone_surrogates": 1})


def test_too_long_json_line_is_skipped(read, monkeypatch):
    monkeypatch.setattr(formats, "MAX_JSON_LINE_BYTES", 1 << 20)
    content = json_lines({"text": "One."}, {"text": "a " * 2_000_000}, {"text": "Two."})
    assert read(content, "jsonl", max_bad_line_share=0.5) == (
        [["One."], ["Two."]],
        {"long_lines": 1, "malformed_lines": 1},
    )


def test_long_document_is_split_into_parts(read, monkeypatch):
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_LENGTH", 1000)
    monkeypatch.setattr(sentences, "MAX_PARAGRAPH_LENGTH", 100)
    text = "A sentence of some words. " * 200
    documents, odd = read(json_lines({"text": text}, {"text": "One."}), "jsonl")
    assert odd == {"long_documents": 1}
    assert documents[-1] == ["One."]
    lengths = [len(" ".join(document)) for document in documents[:-1]]
    assert all(1000 <= length <= 1200 for length in lengths[:-1])
    assert lengths[-1] <= 1200
    assert " ".join(" ".join(document) for document in documents[:-1]) == text.strip()


# WikiExtractor

WIKI_TAGS = """<doc id="1" url="https://e.org/?curid=1" title="AT&amp;T &quot;A&quot;">
AT&amp;T "A"

AT&amp;T is a firm. It is &lt;large&gt;.

History.
It began in 1885.

</doc>
<doc id="2" url="https://e.org/?curid=2" title="Redirect">
Redirect



</doc>
<doc id="3" revid="9" url="https://e.org/?curid=3" title="">
Text from the first line on.
</doc>
"""
WIKI_DOCUMENTS = [
    ["AT&T is a firm.", "It is <large>.", "History.", "It began in 1885."],
    ["Text from the first line on."],
]
FIRST = "AT&amp;T is a firm. It is &lt;large&gt;.\nHistory.\nIt began in 1885."
WIKI_JSON = json_lines(
    {"id": "1", "title": 'AT&amp;T "A"', "text": f'AT&amp;T "A"\n\n{FIRST}'},
    {"id": "2", "title": "Redirect", "text": ""},
    {"id": "3", "title": "Three", "text": "Text from the first line on."},
)


@pytest.mark.parametrize("content", [WIKI_TAGS, WIKI_JSON], ids=["tags", "json"])
def test_wikipedia_titles_and_redirects_are_skipped(read, content):
    assert read(content, "wiki") == (WIKI_DOCUMENTS, {"empty_documents": 1})
    archive = bz2.compress(f"\n \n{content}".encode())
    assert read(archive, "wiki", "wiki_00.bz2")[0] == WIKI_DOCUMENTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("One.\nTwo.\n", r"line 1: found 'One\.'; expected '<doc \.\.\.>'"),
        ('<doc id="1" title="A">\nA\nOne.\n', "line 1: an article without the end tag '</doc>'"),
        ('<doc id="1" title="A">\nOne.\n' * 2 + "</doc>", "line 1: an article without the end tag"),
    ],
)
def test_broken_wikipedia_files_are_rejected(read, content, message):
    with pytest.raises(InputError, match=message):
        read(content, "wiki")


# Project Gutenberg

HEADER = """The Project Gutenberg EBook of A Book, by Someone

Title: A Book
Character set encoding: {charset}

"""
BODY = """

Produced by A. Volunteer and the Online
Distributed Proofreading Team



A BOOK

CHAPTER I

It _was_ a dark night. The caf\xe9 of
_The Mill_ was shut.

He owed 17__ pounds.

"""
FOOTER = """
End of Project Gutenberg's A Book, by Someone

*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***

This file should be named 1234.txt
"""
BOOK = ["A BOOK", "CHAPTER I", "It was a dark night.", "The caf\xe9 of The Mill was shut."]
BOOK += ["He owed 17__ pounds."]
START = "*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***"


@pytest.mark.parametrize(
    ("charset", "start", "end"),
    [
        ("UTF-8", "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***", FOOTER),
        ("ISO-8859-1", "***START OF THE PROJECT GUTENBERG EBOOK A BOOK***", FOOTER),
        ("Windows Codepage 1252", "*** START OF THE PROJECT GUTENBERG EBOOK A,\nAND ***", FOOTER),
        ("ISO Latin-1", START, FOOTER),
        ("utf-7", START, FOOTER),
        (
            "Wrongly named",
            START,
            "***END OF THE PROJECT GUTENBERG EBOOK A BOOK***\nA licence.\n",
        ),
        (
            "Base64",
            "A licence.\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
            "End of the Project Gutenberg Etext of A Book\nAnd more.\n",
        ),
        (
            "US-ASCII",
            "*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*\nMore of it.\n"
            + START,
            FOOTER,
        ),
    ],
)
def test_book_is_the_text_between_the_markers(read, charset, start, end):
    codec = "latin-1" if charset.startswith(("ISO", "Windows")) else "utf-8"
    content = (HEADER.format(charset=charset) + start + BODY + end).encode(codec)
    assert read(content.replace(b"\n", b"\r\n"), "gutenberg") == ([BOOK], {})


def test_several_books_in_a_file_with_different_character_sets(read):
    start = START + "\n"
    books = [
        (HEADER.format(charset="ISO-8859-1") + start + BODY + FOOTER).encode("latin-1"),
        ("Title: A Book\n" + start + BODY + FOOTER).encode(),
        (start + FOOTER).encode(),
        (start + "The end is lacking.\n").encode(),
        (start + BODY).encode(),
    ]
    documents = [BOOK, BOOK, ["The end is lacking."], BOOK]
    assert read(b"".join(books), "gutenberg") == (documents, {})


def test_file_without_markers_is_read_as_a_whole_and_counted(read):
    content = (HEADER.format(charset="ISO-8859-1") + BODY).encode("latin-1")
    (document,), odd = read(content, "gutenberg")
    assert document[-3:] == BOOK[-3:]
    assert odd == {"unmarked_files": 1}
    book = "One.\n\nEnd of Project Gutenberg's A Book\nMore.\n"
    assert read(book, "gutenberg") == ([["One."]], {"unmarked_files": 1})


def test_undecodable_bytes_of_each_book_are_bad_characters(read):
    content = f"{START}\nA caf\xe9, a na\xefve text.\n".encode("latin-1") * 5
    assert read(content, "gutenberg", max_bad_line_share=0.5)[1] == {"undecodable_bytes": 10}
    with pytest.raises(InputError, match="10 of 106 characters are bad"):
        read(content, "gutenberg", max_bad_line_share=0.05)


# --- rows of Parquet and Arrow files ---


TEXTS = ["One. Two.\nA heading", "Three.", "", None, "Four."]
DOCUMENTS = [["One.", "Two.", "A heading"], ["Three."], ["Four."]]


def write_parquet(path, table, **options):
    parquet.write_table(table, path, **options)
    return path


def write_arrow(path, table, new=pa.ipc.new_stream, rows=2):
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def read_table(path, input_format, **reading):
    odd = OddInput()
    documents = list(read_documents(str(path), Reading(input_format, **reading), odd))
    return documents, odd


def make_table(texts=TEXTS, name="text", kind=None):
    return pa.table({"id": list(range(len(texts))), name: pa.array(texts, kind or pa.string())})


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
@pytest.mark.parametrize("new", [None, pa.ipc.new_stream, pa.ipc.new_file])
def test_parquet_and_arrow(tmp_path, kind, new):
    table, path = make_table(kind=kind), tmp_path / "a"
    write_arrow(path, table, new) if new else write_parquet(path, table, row_group_size=2)
    documents, odd = read_table(path, "arrow" if new else "parquet")
    assert documents == DOCUMENTS
    places = [{"file": str(path), "row": 3}, {"file": str(path), "row": 4}]
    assert odd == {"empty_documents": {"count": 2, "files": 1, "first": places}}


def test_text_field_names_the_column(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", make_table(name="body"))
    assert read_table(path, "parquet", text_field="body")[0] == DOCUMENTS
    with pytest.raises(InputError, match=r"a\.parquet: has no column 'text'; .* columns: id, body"):
        read_table(path, "parquet")
    with pytest.raises(InputError, match="column 'id' has the type int64; expected strings"):
        read_table(path, "parquet", text_field="id")


@pytest.mark.parametrize("input_format", ["parquet", "arrow"])
def test_text_that_is_not_utf8_is_counted_by_row(tmp_path, input_format):
    values = pa.array([b"Good.", b"B\xffd. Good.", *[b"Good."] * 8], pa.binary())
    bad = pa.table({"text": values.view(pa.string())})
    write = write_parquet if input_format == "parquet" else write_arrow
    path = write(tmp_path / "a", bad)
    documents, odd = read_table(path, input_format)
    assert documents[1] == ["B\ufffdd.", "Good."]
    assert odd["undecodable_bytes"]["first"] == [{"file": str(path), "row": 2}]
    with pytest.raises(InputError, match=r"a row 2: the text is not UTF-8: more than --max_bad"):
        read_table(path, input_format, max_bad_line_share=0)


@pytest.mark.parametrize(
    ("input_format", "content", "message"),
    [
        ("parquet", b"", "the Parquet file cannot be read: .* 0 bytes"),
        ("parquet", b"PAR1\xff\xff\x00\x00PAR1", "the Parquet file cannot be read: "),
        ("arrow", b"PAR1 and more", "the Arrow file cannot be read: "),
        ("arrow", b"\xff\xff\xff\xff\x10\0\0\0", "expected a complete Arrow stream, with its en"),
    ],
)
def test_other_files_are_rejected(tmp_path, input_format, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match="/a: .*" + message) as error:
        read_table(tmp_path / "a", input_format)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_corrupt_row_group_is_named(tmp_path, compression):
    texts = [f"Sentence {number} of the corpus." for number in range(100)]
    columns = {"id": range(len(texts)), "text": texts}
    path = write_corrupt_parquet(tmp_path / "a.parquet", columns, compression)
    with pytest.raises(InputError, match=r"row group 2 \(rows 51 to 100\) cannot be read: ") as e:
        read_table(path, "parquet")
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_row_group(tmp_path):
    text = "A sentence of a document. " * 40
    table = make_table([f"{number} {text}" for number in range(30_000)])
    path = write_parquet(tmp_path / "a.parquet", table, compression="none")
    assert path.stat().st_size > 30 << 20
    previous = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(previous)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        num_sentences = sum(map(len, read_documents(str(path), Reading("parquet"), OddInput())))
        python_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(previous)
    assert num_sentences == 30_000 * 40
    assert pool.max_memory() + python_peak < 12 << 20


# --- folders of Dataset.save_to_disk ---


WRITE = """
import sys
from pathlib import Path

import datasets

folder = Path(sys.argv[1])
texts = [f"Sentence {number}. The next one.\\nA paragraph." for number in range(10)]
rows = datasets.Dataset.from_dict({"id": range(12), "text": [*texts, None, ""]})
rows.save_to_disk(folder / "single")
rows.save_to_disk(folder / "shards", num_shards=3)
rows.select([9, 0, 5]).save_to_disk(folder / "selected")
splits = {"train": rows.select(range(6)), "test": rows.select(range(6, 8))}
datasets.DatasetDict(splits).save_to_disk(folder / "splits", num_shards={"train": 2, "test": 1})
"""


@pytest.fixture(scope="module")
def folder(peers_python, tmp_path_factory):
    """Returns a folder with datasets; fails if .peers is older than its list of packages."""
    folder = tmp_path_factory.mktemp("datasets")
    done = subprocess.run(
        [peers_python, "-c", WRITE, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("name", "num_files", "numbers", "num_empty"),
    [
        ("single", 1, range(10), 2),
        ("shards", 3, range(10), 2),
        ("selected", 1, [9, 0, 5], 0),
        ("splits", 3, [6, 7, *range(6)], 0),
    ],
)
def test_folders_of_save_to_disk(folder, name, num_files, numbers, num_empty):
    odd, documents = OddInput(), []
    (folder / name / "cache-1.arrow").write_bytes(b"cache")
    paths = find_input_files(str(folder / name), "arrow")
    assert len(paths) == num_files
    for path in paths:
        documents += read_documents(path, Reading("arrow"), odd)
    assert documents == [[f"Sentence {n}.", "The next one.", "A paragraph."] for n in numbers]
    assert odd.get("empty_documents", {"count": 0})["count"] == num_empty


def test_folder_of_save_to_disk_that_lacks_a_file_is_rejected(tmp_path):
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    state = {"_data_files": [{"filename": name} for name in names]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    (tmp_path / names[0]).write_bytes(b"")
    with pytest.raises(InputError, match=rf"state\.json: .*{names[1]} is missing; expected"):
        find_input_files(str(tmp_path), "arrow")
