"""Tests of reading HTML, Markdown and Word files, and corpora of several formats."""

import gzip
import io
import json
import zipfile
from itertools import pairwise

import docx
import pyarrow as pa
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from pyarrow import parquet

from data_tools import formats
from data_tools.corpus import Reading, find_input_files, read_documents
from data_tools.lines import OddInput
from keras_bert.errors import InputError

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


# HTML


def test_html_blocks_are_paragraphs_and_scripts_are_skipped(read):
    page = """<!DOCTYPE html><html><head><title>Title</title><style>p {}</style></head><body>
      <nav><a href="/">Home</a></nav><h1>A <b>heading</b></h1><!-- comment -->
      <p>One &amp; two.\n Three<br>Four&nbsp;&eacute;.<p>Five<script>var x = "<p>no</p>";</script>.
      <table><tr><td>a</td><td>b</td></tr></table><ul><li>item</ul>Last"""
    sentences = ["A heading", "One & two.", "Three", "Four é.", "Five.", "a", "b", "item", "Last"]
    assert read(page, "html") == ([sentences], {})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16", "windows-1252"])
def test_html_encodings(read, encoding):
    text = "naïve" if encoding == "windows-1252" else "Größe 中文"
    page = f'<meta charset="{encoding}"><p>{text}.</p>' + "<p>More.</p>" * 20_000
    documents, odd = read(page.encode(encoding), "html")
    assert (documents[0][0], odd) == (text + ".", {})
    assert len(documents[0]) == 20_001


def test_undecodable_bytes_of_html_are_counted(read):
    page = b"<p>B\xffd, and a long text that can be read.</p>"
    assert read(page, "html")[1] == {"undecodable_bytes": 1}
    with pytest.raises(InputError, match=r"corpus character 1: not text in the declared encoding"):
        read(page, "html", max_bad_line_share=0)
    with pytest.raises(InputError, match=r"characters are bad, more than --max_bad_line_sh"):
        read(bytes(range(256)) * 10, "html")


def test_large_html_is_rejected(read, monkeypatch):
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has more than 1 MiB; expected a smaller file"):
        read(gzip.compress(b"<p>text</p>" * 200_000), "html", "file.html.gz")


def test_files_without_text_are_counted(read):
    for input_format in ("html", "markdown"):
        for content in (" \n", "<script>x</script>"):
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


@pytest.mark.parametrize("content", ["> " * 20_000, "<div>" * 900])
def test_nested_markdown_ends(read, content):
    read(content, "markdown")


# Word documents


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
    file = io.BytesIO()
    document.save(file)
    sentences = ["A heading", "One two.", "Three.", "Four", "five.", "a", "b", "Größe 中文."]
    assert read(file.getvalue(), "docx") == ([sentences], {})


def test_deleted_text_and_field_codes_are_skipped(read):
    body = (
        "<w:p><w:r><w:t>Kept </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
    )
    assert read(raw_word_file(body), "docx") == ([["Kept new"]], {})


def test_entities_of_xml_are_limited(read, tmp_path):
    entities = '<!ENTITY a "lol">' + "".join(
        f'<!ENTITY {name} "{f"&{last};" * 10}">' for last, name in pairwise("abcdefghi")
    )
    body = "<w:p><w:r><w:t>One &i; two.</w:t></w:r></w:p>"
    with pytest.raises(InputError, match="cannot be parsed: limit on input amplification"):
        read(raw_word_file(body, f"<!DOCTYPE w [{entities}]>"), "docx")
    (tmp_path / "secret").write_text("secret")
    external = f'<!DOCTYPE w [<!ENTITY i SYSTEM "{tmp_path / "secret"}">]>'
    assert read(raw_word_file(body, external), "docx") == ([["One two."]], {})


def test_other_files_are_rejected(read):
    message = "cannot be parsed: .* expected a file of the format docx"
    for content in (b"plain text", raw_word_file("", part="x.xml"), raw_word_file("<w:p>")):
        with pytest.raises(InputError, match=message) as error:
            read(content, "docx")
        assert "\n" not in str(error.value)


# PDF


def test_pdf(read):
    page, file = Figure(), io.BytesIO()
    lines = ["A heading.", "", "This is a long sen-", "tence of three", "lines. Another one."]
    for number, line in enumerate(lines):
        page.text(0.1, 0.9 - 0.04 * number, line, fontsize=12)
    with rc_context({"pdf.fonttype": 42}):
        page.savefig(file, format="pdf")
    expected = ["A heading.", "This is a long sentence of three lines.", "Another one."]
    assert read(file.getvalue(), "pdf") == ([expected], {})


# Several formats


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
    state = {"_data_files": [{"filename": "h.arrow"}]}
    (folder / "dataset" / "state.json").write_text(json.dumps(state))
    odd, documents = OddInput(), []
    for path in find_input_files(str(folder), "mixed"):
        documents += read_documents(path, Reading("mixed"), odd)
    assert sorted(documents) == [
        *(["Heading"], ["Line."], ["Page."], ["Prose.", "More prose."], ["Row."], ["Row."]),
        ["Word."],
    ]
    first = [
        {"file": str(folder / name), "what": f"ending {ending!r}"}
        for name, ending in (("README", ""), ("g.png", ".png"))
    ]
    assert odd == {"unknown_files": {"count": 2, "files": 2, "first": first}}
