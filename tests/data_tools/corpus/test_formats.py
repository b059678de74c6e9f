"""Tests of reading JSON lines, the output of WikiExtractor and files of Project Gutenberg."""

import bz2
import json

import pytest

from data_tools.corpus import formats, paragraphs
from data_tools.corpus.documents import OddInput, Reading, read_documents
from keras_bert.common.errors import InputError


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads content in a format: (documents, counts of odd input)."""

    def read(content, input_format, name="corpus", **reading):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        odd = OddInput()
        documents = list(read_documents(str(path), Reading(input_format, **reading), odd))
        return documents, {kind: entry["count"] for kind, entry in odd.to_dict().items()}

    return read


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
    assert read(content, "jsonl", text_field="body", language="zh")[0] == [
        ["今天很好。", "我们去吧！"]
    ]


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
    with pytest.raises(InputError, match=rf"line 11: {message}"):
        read(good + line + "\n", "jsonl", max_bad_line_share=0)


def test_lone_surrogates_are_replaced(read):
    content = '{"text": "A \\ud83d one. A \\ud83d\\ude00 two."}\n'
    assert read(content, "jsonl") == ([["A \ufffd one.", "A 😀 two."]], {"lone_surrogates": 1})


def test_line_with_two_defects_counts_as_one_bad_line(read):
    with pytest.raises(InputError, match="1 of 2 lines are bad"):
        read(b'{"text": "One."}\n\xff\n', "jsonl")


def test_too_long_json_line_is_skipped(read, monkeypatch):
    monkeypatch.setattr(formats, "MAX_JSON_LINE_BYTES", 1 << 20)
    content = json_lines({"text": "One."}, {"text": "a " * 2_000_000}, {"text": "Two."})
    assert read(content, "jsonl", max_bad_line_share=0.5) == (
        [["One."], ["Two."]],
        {"long_lines": 1, "malformed_lines": 1},
    )


def test_long_document_is_split_into_parts(read, monkeypatch):
    monkeypatch.setattr(paragraphs, "MAX_DOCUMENT_LENGTH", 1000)
    monkeypatch.setattr(paragraphs, "MAX_PARAGRAPH_LENGTH", 100)
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
WIKI_JSON = json_lines(
    {
        "id": "1",
        "title": 'AT&amp;T "A"',
        "text": 'AT&amp;T "A"\n\nAT&amp;T is a firm. It is &lt;large&gt;.\nHistory.\nIt began '
        "in 1885.",
    },
    {"id": "2", "title": "Redirect", "text": ""},
    {"id": "3", "title": "Three", "text": "Text from the first line on."},
)


@pytest.mark.parametrize("content", [WIKI_TAGS, WIKI_JSON], ids=["tags", "json"])
@pytest.mark.parametrize("name", ["wiki_00", "wiki_00.bz2"])
def test_wikipedia_titles_and_redirects_are_skipped(read, content, name):
    content = content.encode()
    content = bz2.compress(content) if name.endswith("bz2") else content
    assert read(content, "wiki", name) == (WIKI_DOCUMENTS, {"empty_documents": 1})


def test_leading_blank_lines_do_not_change_the_detected_format(read):
    assert read("\n \n" + WIKI_JSON, "wiki")[0] == WIKI_DOCUMENTS


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
BOOK = [
    "A BOOK",
    "CHAPTER I",
    "It was a dark night.",
    "The caf\xe9 of The Mill was shut.",
    "He owed 17__ pounds.",
]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***", FOOTER),
        ("***START OF THE PROJECT GUTENBERG EBOOK A BOOK***", FOOTER),
        ("*** START OF THE PROJECT GUTENBERG EBOOK A BOOK,\nOR A LONG TITLE ***", FOOTER),
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
            "***END OF THE PROJECT GUTENBERG EBOOK A BOOK***\nA licence.\n",
        ),
        (
            "A licence.\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
            "End of the Project Gutenberg Etext of A Book\nAnd more.\n",
        ),
        (
            "*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*\nMore of it.\n"
            "*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***",
            FOOTER,
        ),
    ],
)
@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("UTF-8", "utf-8"),
        ("ISO-8859-1", "latin-1"),
        ("ISO Latin-1", "latin-1"),
        ("Windows Codepage 1252", "cp1252"),
        ("Wrongly named", "utf-8"),
    ],
)
def test_book_is_the_text_between_the_markers(read, start, end, charset, codec):
    content = (HEADER.format(charset=charset) + start + BODY + end).encode(codec)
    assert read(content.replace(b"\n", b"\r\n"), "gutenberg") == ([BOOK], {})


def test_several_books_in_a_file_with_different_character_sets(read):
    start = "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n"
    books = [
        (HEADER.format(charset="ISO-8859-1") + start + BODY + FOOTER).encode("latin-1"),
        ("Title: A Book\n" + start + BODY + FOOTER).encode(),
        (start + FOOTER).encode(),
        (start + "The end is lacking.\n").encode(),
        (start + BODY).encode(),
    ]
    assert read(b"".join(books), "gutenberg") == (
        [BOOK, BOOK, ["The end is lacking."], BOOK],
        {"empty_documents": 1},
    )


def test_file_without_markers_is_read_as_a_whole_and_counted(read, shared_data):
    assert read("\nOne. Two.\n\nThree.\n", "gutenberg") == (
        [["One.", "Two.", "Three."]],
        {"unmarked_files": 1},
    )
    novel = (shared_data / "corpus/pride_and_prejudice.txt").read_bytes()
    (document,), odd = read(novel, "gutenberg")
    assert odd == {"unmarked_files": 1}
    assert document[0] == "Chapter 1"
    assert "“You want to tell me, and I have no objection to hearing it.”" in document


def test_end_marker_without_a_start_marker_ends_the_book(read):
    assert read("One.\n\nEnd of Project Gutenberg's A Book\nMore.\n", "gutenberg") == (
        [["One."]],
        {"unmarked_files": 1},
    )


def test_unclosed_tag_is_read_in_linear_time(read):
    """A pattern that tries every position for the end of the tag would take hours."""
    for text in ("<doc" + " " * 200_000 + "x", "<doc " + 'title="' * 30_000 + "\n"):
        with pytest.raises(InputError, match="expected '<doc"):
            read(text, "wiki")
