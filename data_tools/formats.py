r"""Reads the formats of a corpus, one function per format.

Each function yields the documents in a file as texts with `\n` between sentences, and counts odd
input in the file's `Units`: `Lines`, rows or characters.
"""

import codecs
import contextlib
import html
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import Any, BinaryIO

from data_tools.lines import BLOCK_BYTES, Line, Lines, Units, decode, is_archive, read_blocks
from data_tools.sentences import Document, is_over_long
from keras_bert.columnar_files import is_string, read_batches
from keras_bert.errors import InputError

# --- one sentence per line, prose, JSON lines, WikiExtractor ---

MAX_JSON_LINE_BYTES = 100 << 20

_SURROGATE = re.compile("[\ud800-\udfff]")

# Fewer lines are not judged by their lengths.
_MIN_LINES = 20
_SENTENCE_ENDS = tuple(".!?:;\"')]»”’…।؟。！？」")

_DOC_TAG_STARTS = re.compile(r"<doc\b")
_TITLE_STARTS = re.compile(r'\btitle="')

# The formats whose files can be divided between two documents, with the end of a document.
_DOCUMENT_ENDS = {
    "sentences": rb"\n\r?\n",
    "prose": rb"\n\r?\n\r?\n",
    "jsonl": rb"\n",
    "wiki": rb"\n(?=<doc\b[^\n]*>\r?\n)",
    "wiki as JSON": rb"\n(?=\{)",
}


def document_end(input_format: str, start: bytes) -> re.Pattern | None:
    """Returns a pattern of places where a file can be divided without changing its documents.

    Returns None if files of the format cannot be divided.
    """
    is_json = start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
    name = "wiki as JSON" if input_format == "wiki" and is_json else input_format
    return re.compile(_DOCUMENT_ENDS[name]) if name in _DOCUMENT_ENDS else None


def _is_hard_wrapped(lines: list[str]) -> bool:
    """Returns whether non-blank lines are those of running text with a maximum line length.

    Their lengths are almost equal, and few of them end a sentence. In 76 of 85 books of Project
    Gutenberg (the others are plays and verse), 95% of the lines are at most 1.25 times as long as
    the median; in files with one sentence per line, 1.3 to 3.5 times.
    """
    lengths = sorted(map(len, lines))
    if len(lines) < _MIN_LINES:
        return False
    median, long = lengths[len(lengths) // 2], lengths[int(0.95 * len(lengths))]
    num_ends = sum(line.endswith(_SENTENCE_ENDS) for line in lines)
    return 30 <= median <= 160 and long <= 1.25 * median and num_ends < 0.5 * len(lines)


def sentence_texts(lines: Lines) -> Iterator[str]:
    """Yields the documents of a file with one sentence per line, a blank line between documents."""
    document: list[str] = []
    length = block = 0
    is_in_parts = False
    first_lines: list[str] = []  # of the first block, which show whether the text is hard-wrapped
    for line in lines.lines():
        text = lines.decode(line).strip()
        last_block, block = block, (line.offset + len(line.content)) // BLOCK_BYTES
        # Over-long documents end with a block, as in earlier versions.
        if block > last_block and is_over_long(length, len(document)):
            if not is_in_parts:
                lines.add_odd("long_documents", line)
            yield "\n".join(document)
            document, length, is_in_parts = [], 0, True
        if not block and text and not lines.part.start:
            first_lines.append(text)
        if text:
            document.append(text)
            length += len(text) + 1
        else:
            if document:
                yield "\n".join(document)
            document, length, is_in_parts = [], 0, False
    if document:
        yield "\n".join(document)
    if _is_hard_wrapped(first_lines):
        lines.odd.add("hard_wrapped_files", {"file": lines.path})


def prose_texts(lines: Lines, language: str) -> Iterator[str]:
    """Yields the documents of running text; two blank lines or a form feed end a document."""
    document = Document(lines, language)
    blank_lines = 0
    for line in lines.lines():
        for part_number, part in enumerate(lines.decode(line).split("\f")):
            opens_page = part_number > 0
            text = part.strip()
            blank_lines = 0 if text else blank_lines + 1
            if opens_page or blank_lines >= 2:
                yield from document.end()
            if text:
                yield from document.add_line(text, line)
            else:
                document.end_paragraph()
    yield from document.end()


def json_texts(lines: Lines, text_field: str, language: str) -> Iterator[str]:
    """Yields the field `text_field` of each JSON object, one per line, as a document.

    Line breaks in the field end paragraphs.
    """
    document = Document(lines, language)
    for line, fields in _json_objects(lines, lines.lines(), text_field):
        yield from document.of_paragraphs(fields[text_field].split("\n"), line)


def _json_objects(
    lines: Lines, source: Iterable[Line], text_field: str
) -> Iterator[tuple[Line, dict]]:
    """Yields the JSON objects whose text field is a string; counts and skips all other lines."""
    long_line = 0
    for line in source:
        if line.is_partial:
            if line.number != long_line:
                lines.add_malformed(line, f"longer than {MAX_JSON_LINE_BYTES} bytes")
            long_line = line.number
            continue
        text = lines.decode(line).strip()
        if not text:
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            lines.add_malformed(line, f"not JSON: {error}")
            continue
        del text  # frees memory: it may be large, like its fields
        if not isinstance(fields, dict):
            lines.add_malformed(line, f"a JSON {type(fields).__name__}; expected an object")
        elif text_field not in fields:
            lines.add_malformed(line, f"no field {text_field!r} in the JSON object")
        elif not isinstance(fields[text_field], str):
            kind = type(fields[text_field]).__name__
            lines.add_malformed(line, f"field {text_field!r} is a {kind}; expected a string")
        else:
            if b"\\u" in line.content:  # only an escape can produce a lone surrogate
                fields[text_field], times = _SURROGATE.subn("\ufffd", fields[text_field])
                if times:
                    lines.add_odd("lone_surrogates", line, times)
            yield line, fields


def wiki_texts(lines: Lines, language: str) -> Iterator[str]:
    """Yields the articles in the output of WikiExtractor: `<doc ...>` to `</doc>`, or JSON lines.

    The first non-blank line of the file determines the form. If the first line of an article
    repeats its title, the line is skipped. Redirects are counted as empty documents.
    """
    source = lines.lines()
    for first in source:
        if start := first.content.strip():
            read = _wiki_json_texts if start.startswith(b"{") else _wiki_tag_texts
            yield from read(lines, chain([first], source), language)


def _wiki_json_texts(lines: Lines, source: Iterable[Line], language: str) -> Iterator[str]:
    document = Document(lines, language)
    for line, fields in _json_objects(lines, source, "text"):
        title = html.unescape(str(fields.get("title", ""))).strip()
        paragraphs = [html.unescape(text) for text in fields["text"].split("\n")]
        has_title = paragraphs[0].strip() == title
        yield from document.of_paragraphs(paragraphs[has_title:], line)


def _wiki_tag_texts(lines: Lines, source: Iterable[Line], language: str) -> Iterator[str]:
    document = Document(lines, language)
    opened: Line | None = None
    title: str | None = None  # of the article, until its first line is read
    for line in source:
        text = lines.decode(line).strip()
        if (named := _title_of_tag(text)) is not None:
            if opened:
                lines.add_malformed(opened, "an article without the end tag '</doc>'")
                yield from document.end()
            opened, title = line, html.unescape(named).strip()
        elif text == "</doc>" and opened:
            yield from document.end_or_count_empty(opened)
            opened = None
        elif text and not opened:
            lines.add_malformed(line, f"found {text[:40]!r}; expected '<doc ...>'")
        elif text:
            text = html.unescape(text)
            if text != title:
                yield from document.add_line(text, line)
                document.end_paragraph()
            title = None
    if opened:
        lines.add_malformed(opened, "an article without the end tag '</doc>'")
        yield from document.end()


def _title_of_tag(text: str) -> str | None:
    """Returns the title in a line `<doc ... title="...">`.

    Returns "" if the tag has no title, and None if the line is no such tag.
    """
    if not (_DOC_TAG_STARTS.match(text) and text.endswith(">")):
        return None
    attributes = text[:-1].rstrip()
    title = _TITLE_STARTS.search(attributes)  # the last attribute; it may contain quotes
    if title and attributes.endswith('"') and title.end() < len(attributes):
        return attributes[title.end() : -1]
    return ""


# --- Project Gutenberg ---

# "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***", "***START OF THE ..."; the oldest files
# have the end of a licence instead, "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*".
_BOOK_STARTS = re.compile(rb"\*{3}\s*START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG", re.IGNORECASE)
_SMALL_PRINT_ENDS = re.compile(rb"\*END ?\*? ?THE SMALL PRINT", re.IGNORECASE)
_BOOK_ENDS = re.compile(
    rb"\*{3}\s*END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    rb"|End of (?:the |this )?Project Gutenberg(?:'s|\xe2\x80\x99s)?\b",
    re.IGNORECASE,
)
_CHARACTER_SET = re.compile(rb"Character set encoding:\s*(.+)", re.IGNORECASE)
_CREDITS = re.compile(
    r"(?:Produced|Prepared|Transcribed|E-?text prepared|"
    r"This e-?(?:text|book) was (?:produced|prepared|transcribed))\s+(?:by|from)\b",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"(?<!\w)_([^_]+)_(?!\w)")
_SINGLE_BYTE_SETS = re.compile(
    r"(?:iso[- ]?8859-|windows(?: codepage)?[- ]?|cp-?)(\d+)", re.IGNORECASE
)
_CREDIT_PARAGRAPHS = 3  # credits precede the title page


def _books(characters: Units, content: bytes) -> Iterator[list[str]]:
    """Yields the paragraphs of each book in a file of Project Gutenberg.

    A book is the text between a start marker and an end marker; a file without markers is read as
    one book. The lines before a start marker, or those of a book without one, may name the
    character set. Credits ("Produced by ...") at the start of a book and the underscores of
    _emphasis_ are removed.
    """
    lines = [line.strip() for line in content.removeprefix(codecs.BOM_UTF8).split(b"\n")]
    starts = [number for number, line in enumerate(lines) if _BOOK_STARTS.match(line)]
    if not starts:
        starts = [number for number, line in enumerate(lines) if _SMALL_PRINT_ENDS.match(line)][:1]
    if not starts:
        starts = [-1]
        characters.add_odd("unmarked_files")
    end = 0
    for start, next_start in pairwise([*starts, len(lines)]):
        header = lines[end:start] if start >= 0 else lines
        names = filter(None, map(_CHARACTER_SET.match, header))
        encoding = next((_encoding(name[1].decode("ascii", "replace")) for name in names), "utf-8")
        if start >= 0 and not lines[start].endswith(b"***"):  # A long title continues.
            while start + 1 < next_start and lines[start + 1]:
                start += 1
                if lines[start].endswith(b"***"):
                    break
        end = start + 1
        while end < next_start and not _BOOK_ENDS.match(lines[end]):
            end += 1
        text, times = decode(b"\n".join(lines[start + 1 : end]), encoding)
        _count_undecodable(characters, text, times)
        text = " ".join(line.strip() or "\n" for line in text.split("\n"))
        paragraphs = filter(None, map(str.strip, text.split("\n")))
        yield [_tidy_book(*each) for each in enumerate(paragraphs)]


def _encoding(name: str) -> str:
    """Returns Python's name of a single-byte character set, or utf-8 for other names."""
    if re.match(r"iso[- ]latin-?1", name, re.IGNORECASE):
        return "iso-8859-1"
    if numbered := _SINGLE_BYTE_SETS.match(name):
        prefix = "iso-8859-" if name.lower().startswith("iso") else "cp"
        with contextlib.suppress(LookupError):
            return codecs.lookup(prefix + numbered[1]).name
    return "utf-8"


def _tidy_book(number: int, paragraph: str) -> str:
    if number < _CREDIT_PARAGRAPHS and _CREDITS.match(paragraph):
        return ""
    return _EMPHASIS.sub(r"\1", paragraph)


# --- rows of Parquet and Arrow files ---


def table_texts(
    rows: Units, file: BinaryIO, form: str, column: str, language: str
) -> Iterator[str]:
    """Yields the text in each row of a column as a document; line breaks in it end paragraphs.

    The text of a null is empty.
    """
    if is_archive(rows.path):
        raise InputError(
            f"{rows.path}: is compressed; expected a {form} file, which has a compression of its "
            "own; decompress the file"
        )
    document = Document(rows, language)
    for first_row, batch in read_batches(rows.path, file, form, [column]):
        values = batch[column]
        if not is_string(values.type):
            raise InputError(
                f"{rows.path}: column {column!r} has the type {values.type}; expected strings; "
                "--text_field names the column with the text"
            )
        for number, value in enumerate(values, start=first_row):
            rows.num_units = number
            text = _text_of(rows, number, value)
            yield from document.of_paragraphs(text.split("\n"), number)


def _text_of(rows: Units, number: int, value: Any) -> str:
    try:
        return value.as_py() or ""
    except UnicodeDecodeError:
        value = getattr(value, "value", value)  # of a dictionary
    text, times = decode(value.as_buffer().to_pybytes())
    rows.add_odd("undecodable_bytes", number, times)
    rows.add_bad(number, "the text is not UTF-8")
    return text


# --- web pages, Markdown, Word documents and PDF: a document for each file ---

MAX_FILE_BYTES = 32 << 20  # decompressed; the parsers need ten times as much memory, or more
_HEAD_BYTES = 1024  # that may declare the encoding, as in the HTML standard
_ENCODING_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ENCODING_NAME = re.compile(
    rb"""(?:charset\s*=|<\?xml[^>]*encoding\s*=)\s*["']?\s*([\w.:-]+)""", re.I
)
_FRONT_MATTER = re.compile(r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_HYPHENATED = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_])")
_SKIPPED = "button head iframe math nav noscript object script select style svg template textarea"
_BREAK_NAMES = """
address article aside blockquote body br caption center dd details dialog div dl dt fieldset
figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu ol option
p pre section summary table tbody td tfoot th thead tr ul
"""
_BREAKS = frozenset(_BREAK_NAMES.split())
_BREAK = "\u2029"  # the paragraph separator of Unicode


def file_texts(characters: Units, file: BinaryIO, form: str, language: str) -> Iterator[str]:
    """Yields the text of a file as a document (several if it is over-long or of several books).

    Headings, list items and table cells are paragraphs. Scripts, styles, navigation, forms, code
    blocks of Markdown and footnotes of Word are skipped.
    """
    content = bytearray()
    for block in read_blocks(characters.path, file):
        content += block
        _check_size(characters, len(content))
    document = Document(characters, language)
    try:
        documents = FILE_FORMATS[form](characters, bytes(content)) if content.strip() else ()
        documents = [*documents]
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"{characters.path}: needs the package {error.name}; install the extra documents: "
            "pip install 'keras-bert-pipeline[documents]'"
        ) from None
    except Exception as error:  # The parsers raise many types for damaged files.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{characters.path}: cannot be parsed: {reason:.200}; expected a file of the format "
            f"{form}, undamaged and without a password"
        ) from None
    for paragraphs in documents:
        for paragraph in paragraphs:
            yield from document.add_line(paragraph, None)
            document.end_paragraph()
        yield from document.end()


def _check_size(characters: Units, num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise InputError(
            f"{characters.path}: has more than {MAX_FILE_BYTES >> 20} MiB; expected a smaller "
            "file; split it, or convert it to text for --input_format=prose"
        )


def _html(characters: Units, content: bytes) -> Iterator[list[str]]:
    mark = next(filter(content.startswith, _ENCODING_MARKS), None)
    name = _ENCODING_NAME.search(content[:_HEAD_BYTES])
    encoding = _ENCODING_MARKS[mark] if mark else name[1].decode().lower() if name else "utf-8"
    if encoding in ("iso-8859-1", "latin1", "ascii", "us-ascii"):
        encoding = "cp1252"  # as the HTML standard defines these names
    try:
        text = content.decode(encoding, "replace")
    except LookupError:
        text = content.decode(errors="replace")
    yield _paragraphs(_without_nuls(characters, text))


def _markdown(characters: Units, content: bytes) -> Iterator[list[str]]:
    from markdown_it import MarkdownIt

    text = _without_nuls(characters, content.decode("utf-8-sig", "replace"))
    if front_matter := _FRONT_MATTER.match(text):
        text = text[front_matter.end() :]
    parser = MarkdownIt("commonmark").enable("table")
    tokens = [token for token in parser.parse(text) if token.type not in ("fence", "code_block")]
    yield _paragraphs(parser.renderer.render(tokens, parser.options, {}))


def _docx(characters: Units, content: bytes) -> Iterator[list[str]]:
    import mammoth

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_size(characters, sum(entry.file_size for entry in archive.infolist()))
    no_images = mammoth.images.img_element(lambda image: {})
    yield _paragraphs(
        mammoth.convert_to_html(io.BytesIO(content), convert_image=no_images).value,
        '//*[starts-with(@id, "footnote-") or starts-with(@id, "endnote-")]',
    )


def _pdf(characters: Units, content: bytes) -> Iterator[list[str]]:
    from pdfminer.high_level import extract_text

    pages = extract_text(io.BytesIO(content)).split("\f")
    paragraphs = [paragraph for page in pages for paragraph in page.split("\n\n")]
    yield [" ".join(_HYPHENATED.sub("", paragraph).split()) for paragraph in paragraphs]


# The readers of files whose content is parsed as a whole.
FILE_FORMATS: dict[str, Callable[[Units, bytes], Iterator[list[str]]]] = {
    "gutenberg": _books,
    "html": _html,
    "markdown": _markdown,
    "docx": _docx,
    "pdf": _pdf,
}


def _without_nuls(characters: Units, text: str) -> str:
    """Counts the U+FFFD of undecodable bytes in a text, and replaces NULs, which end HTML."""
    _count_undecodable(characters, text, text.count("\ufffd") + text.count("\0"))
    return text.replace("\0", "\ufffd")


def _count_undecodable(characters: Units, text: str, times: int) -> None:
    if times:
        problem = "not text in the declared encoding or UTF-8"
        characters.add_odd("undecodable_bytes", times=times)
        characters.add_bad(characters.num_units + 1, problem, times)
    characters.num_units += len(text)


def _paragraphs(text: str, skipped_path: str = "") -> list[str]:
    """Returns the paragraphs of HTML, without the elements of an XPath."""
    from lxml import etree, html

    parser = html.HTMLParser(
        encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
    )
    if not text.strip():
        return []
    root = html.document_fromstring(text.encode(), parser=parser)
    for error in parser.error_log:
        if error.level == etree.ErrorLevels.FATAL:
            raise ValueError(error.message)
    for element in root.xpath(skipped_path) if skipped_path else ():
        element.drop_tree()
    etree.strip_elements(root, *_SKIPPED.split(), with_tail=False)
    texts: list[str] = []
    for event, element in etree.iterwalk(root, events=("start", "end")):
        texts.append(_BREAK if element.tag in _BREAKS else "")
        texts.append((element.text if event == "start" else element.tail) or "")
    return [" ".join(paragraph.split()) for paragraph in "".join(texts).split(_BREAK)]
