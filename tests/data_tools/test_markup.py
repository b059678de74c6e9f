"""Tests of reading HTML, Markdown and Word files, and corpora of several formats."""

import gzip
import io
import json
import subprocess
import sys
import zipfile
from itertools import pairwise

import docx
import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools import markup
from data_tools.corpus import Reading, find_input_files, read_documents
from data_tools.lines import OddInput
from data_tools.spill import InputFile
from keras_bert.errors import InputError
from keras_bert.files import sha256

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads content as a file: (documents, counts of odd input)."""

    def read(content, input_format, name="file", **reading):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        odd = OddInput()
        documents = list(read_documents(str(path), Reading(input_format, **reading), odd))
        return documents, {kind: entry["count"] for kind, entry in odd.to_dict().items()}

    return read


# HTML


def test_html_blocks_are_paragraphs_and_scripts_are_skipped(read):
    page = """<!DOCTYPE html><html><head><title>Title</title><style>p {}</style></head><body>
      <nav><a href="/">Home</a></nav><h1>A <b>heading</b></h1><!-- comment -->
      <p>One &amp; two.\n Three<br>Four&nbsp;&eacute;.<p>Five<script>var x = "<p>no</p>";</script>.
      <table><tr><td>a</td><td>b</td></tr></table><ul><li>item</ul>Last"""
    sentences = ["A heading", "One & two.", "Three", "Four é.", "Five.", "a", "b", "item", "Last"]
    assert read(page, "html") == ([sentences], {})


@pytest.mark.parametrize("text", ["Größe 中文", "naïve"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16", "windows-1252"])
def test_html_encodings(read, text, encoding):
    text = text.encode(encoding, "ignore").decode(encoding)
    page = f'<meta charset="{encoding}"><p>{text}.</p>' + "<p>More.</p>" * 20_000
    documents, odd = read(page.encode(encoding), "html")
    assert (documents[0][0], odd) == (text + ".", {})
    assert len(documents[0]) == 20_001


def test_undecodable_bytes_of_html_are_counted(read):
    page = b"<p>B\xffd, and a long text that can be read.</p>"
    assert read(page, "html")[1] == {"undecodable_bytes": 1}
    with pytest.raises(InputError, match=r"file character 1: not text in the declared encoding"):
        read(page, "html", max_bad_line_share=0)
    with pytest.raises(InputError, match=r"characters are bad, more than --max_bad_line_sh"):
        read(bytes(range(256)) * 10, "html")


def test_nested_html_is_rejected(read):
    for tag in ("div", "font"):
        with pytest.raises(InputError, match="/file: elements are nested more than 1000 deep"):
            read(f"<{tag}>" * 200_000, "html")


def test_large_html_is_rejected(read, monkeypatch):
    monkeypatch.setattr(markup, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has more than 1 MiB of text and markup"):
        read(gzip.compress(b"<p>text</p>" * 200_000), "html", "file.html.gz")


@pytest.mark.parametrize("content", ["", " \n", "<p></p>", "<script>x</script>"])
@pytest.mark.parametrize("input_format", ["html", "markdown"])
def test_files_without_text_are_counted(read, content, input_format):
    assert read(content, input_format) == ([], {"empty_files": 1})


# Markdown


def test_markdown_is_text_without_markup_and_code(read):
    text = """---
title: not text
---
# A heading

One *two* [three](http://example.com).
Four `code`. <b>Five</b>

    indented code

```python
code()
```
> quoted

* item

| a | b |
|---|---|
| c | d |
"""
    sentences = ["A heading", "One two three.", "Four code.", "Five", "quoted", "item", *"abcd"]
    assert read(text, "markdown") == ([sentences], {})


@pytest.mark.parametrize(
    "content", ["[" * 50_000, "> " * 50_000, "*a " * 50_000, "- " * 20_000, "<div>" * 900]
)
def test_nested_markdown_ends(read, content):
    read(content, "markdown")


def test_large_markdown_is_rejected(read, monkeypatch):
    monkeypatch.setattr(markup, "MAX_MARKDOWN_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has more than 1 MiB of text and markup"):
        read("text\n" * 300_000, "markdown")


# Word documents


def word_file(document):
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def raw_word_file(body, declaration="", part="word/document.xml"):
    file = io.BytesIO()
    content = f'{declaration}<w:document xmlns:w="{NAMESPACE}"><w:body>{body}</w:body></w:document>'
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(part, content)
    return file.getvalue()


def test_word_document(read):
    document = docx.Document()
    document.add_heading("A heading")
    paragraph = document.add_paragraph("One ")
    paragraph.add_run("two").bold = True
    paragraph.add_run(". Three.\tFour\nfive.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.add_paragraph("Größe 中文.")
    sentences = ["A heading", "One two.", "Three.", "Four five.", "a", "b", "Größe 中文."]
    assert read(word_file(document), "docx") == ([sentences], {})


def test_deleted_text_and_field_codes_are_skipped(read):
    body = (
        "<w:p><w:r><w:t>Kept </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
    )
    assert read(raw_word_file(body), "docx") == ([["Kept new"]], {})


def test_word_file_with_large_text_is_rejected(read, monkeypatch):
    monkeypatch.setattr(markup, "MAX_FILE_BYTES", 1 << 20)
    bomb = raw_word_file("<w:p><w:r><w:t>text</w:t></w:r></w:p>" * 100_000)
    assert len(bomb) < 50_000
    with pytest.raises(InputError, match="has more than 1 MiB of text and markup"):
        read(bomb, "docx")
    # An archive that declares a smaller size than it has.
    size = zipfile.ZipFile(io.BytesIO(bomb)).infolist()[0].file_size
    lying = bomb.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    with pytest.raises(InputError, match=r"file: cannot be (read|parsed): "):
        read(lying, "docx")


def test_entities_of_xml_are_limited(read, tmp_path):
    entities = '<!ENTITY a "lol">' + "".join(
        f'<!ENTITY {name} "{f"&{last};" * 10}">' for last, name in pairwise("abcdefghi")
    )
    body = "<w:p><w:r><w:t>One &i; two.</w:t></w:r></w:p>"
    with pytest.raises(InputError, match="cannot be parsed: Maximum entity amplification factor"):
        read(raw_word_file(body, f"<!DOCTYPE w [{entities}]>"), "docx")
    (tmp_path / "secret").write_text("secret")
    external = f'<!DOCTYPE w [<!ENTITY i SYSTEM "{tmp_path / "secret"}">]>'
    assert read(raw_word_file(body, external), "docx") == ([["One two."]], {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read: File is not a zip file; expected a Word document"),
        (b"\xd0\xcf\x11\xe0 an old or encrypted document", "expected a Word document"),
        (b"plain text", "File is not a zip file; expected a Word document"),
        (raw_word_file("", part="xl/workbook.xml"), "contains no word/document.xml; expected a"),
        (raw_word_file("<w:p>"), "cannot be parsed: "),
        (raw_word_file("<w:p>" * 2000), "cannot be parsed: .*depth|nested more than"),
        (raw_word_file("<w:p/>" * 1000)[:-60], "File is not a zip file"),
    ],
)
def test_other_files_are_rejected(read, content, message):
    with pytest.raises(InputError, match=message) as error:
        read(content, "docx")
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["html", "docx"])
def test_memory_does_not_grow_with_the_file(tmp_path, form):
    if form == "html":
        (tmp_path / "a").write_bytes(b"<p>Some text of a paragraph.</p>\n" * 1_500_000)
    else:
        body = "<w:p><w:r><w:t>Some text of a paragraph.</w:t></w:r></w:p>" * 800_000
        (tmp_path / "a").write_bytes(raw_word_file(body))
    code = (
        "import resource\n"
        "from data_tools.markup import MarkupFile\n"
        "from data_tools.corpus import open_local\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "import lxml.etree\n"
        "before = peak()\n"
        f"n = sum(1 for _ in MarkupFile({str(tmp_path / 'a')!r}, 0.1, open_local)"
        f".paragraphs({form!r}))\n"
        "print(n, peak() - before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    count, grown = map(int, result.stdout.split())
    assert count >= 800_000
    assert grown < 20


# Several formats


@pytest.mark.parametrize("name", ["a.html", "a.docx", "a.md", "a.png"])
def test_checksum_covers_the_whole_file(tmp_path, name):
    word = raw_word_file("<w:p><w:r><w:t>One.</w:t></w:r></w:p>")
    (tmp_path / name).write_bytes(word if name == "a.docx" else b"One.")
    done = []
    source = InputFile(str(tmp_path / name), Reading("mixed"), on_read=done.append)
    assert list(source.documents()) == ([] if name == "a.png" else [b"One."])
    entry = source.entry()
    assert entry["sha256"] == sha256(tmp_path / name)
    assert entry["bytes"] == sum(done) == (tmp_path / name).stat().st_size


def test_mixed_corpus_reads_each_file_by_its_ending(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "dataset").mkdir(parents=True)
    table = pa.table({"text": ["Row."]})
    (folder / "a.txt").write_text("Prose. More\nprose.")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Line."}\n'))
    (folder / "c.HTM").write_text("<p>Page.")
    (folder / "d.md").write_text("# Heading")
    (folder / "e.docx").write_bytes(raw_word_file("<w:p><w:r><w:t>Word.</w:t></w:r></w:p>"))
    parquet.write_table(table, folder / "f.parquet")
    (folder / "g.png").write_bytes(b"\x89PNG")
    (folder / "README").write_text("none")
    with pa.ipc.new_stream(str(folder / "dataset" / "h.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "dataset" / "state.json").write_text(json.dumps({"_data_files": ["h.arrow"]}))
    odd, documents = OddInput(), []
    for path in find_input_files(str(folder), "mixed"):
        documents += read_documents(path, Reading("mixed"), odd)
    assert sorted(documents) == sorted(
        [
            ["Prose.", "More prose."],
            ["Line."],
            ["Page."],
            ["Heading"],
            ["Word."],
            ["Row."],
            ["Row."],
        ]
    )
    assert odd.to_dict() == {
        "unknown_files": {
            "count": 2,
            "files": 2,
            "first": [
                {"file": str(folder / "README"), "what": "ending ''"},
                {"file": str(folder / "g.png"), "what": "ending '.png'"},
            ],
        }
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.parquet", "starts with the bytes"),
        ("a.arrow", "starts with the bytes"),
        ("a.docx", "expected a Word document"),
        ("a.html", "characters are bad"),
        ("a.md", "characters are bad"),
        ("a.txt", "lines are bad"),
        ("a.jsonl", "lines are bad"),
    ],
)
def test_wrong_ending_is_rejected(read, name, message):
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        read(png, "mixed", name)
