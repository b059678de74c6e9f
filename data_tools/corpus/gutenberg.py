"""Extracts the books from Project Gutenberg's files, without headers, licences and credits."""

import codecs
import contextlib
import re
from collections.abc import Iterator

from data_tools.corpus.lines import Line, Lines
from data_tools.corpus.paragraphs import Document

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
_MAX_HEADER_BYTES = 1 << 20


def gutenberg_texts(lines: Lines, language: str) -> Iterator[str]:
    """Yields the books of a Project Gutenberg file as documents.

    A book is the text between a start marker and an end marker; a file without markers is read as
    one book. The lines before the start marker may name the character set. Credits ("Produced by
    ...") at the start of a book and the underscores of _emphasis_ are removed.
    """
    document = Document(lines, language, _tidy_book)
    opened: Line | None = None  # first line of the current book
    after_small_print = in_marker = False
    header: list[Line] | None = []  # lines before the first marker
    header_bytes = 0
    encoding = "utf-8"
    for line in lines.lines():
        content = line.content.strip()
        if in_marker:  # a long title continues on the next line
            in_marker = bool(content) and not content.endswith(b"***")
        elif _BOOK_STARTS.match(content):
            if opened and not after_small_print:
                yield from document.end_or_count_empty(opened)
            document.drop()
            opened, after_small_print, header = line, False, None
            in_marker = not content.endswith(b"***")
        elif opened is None and _SMALL_PRINT_ENDS.match(content):
            opened, after_small_print, header = line, True, None
        elif _BOOK_ENDS.match(content):
            if header:
                opened = header[0]
                yield from _add_unmarked(document, lines, header, encoding)
            if opened:
                yield from document.end_or_count_empty(opened)
            opened, header, encoding = None, None, "utf-8"
        elif opened:
            yield from document.add_line(lines.decode(line, encoding).strip(), line)
        else:
            if named := _CHARACTER_SET.match(content):
                encoding = _encoding(named[1].decode("ascii", "replace"))
            if header is not None and (header or content):
                header.append(line)
                header_bytes += len(content)
                if header_bytes > _MAX_HEADER_BYTES:
                    opened = header[0]
                    yield from _add_unmarked(document, lines, header, encoding)
                    header = None
    if header:
        opened = header[0]
        yield from _add_unmarked(document, lines, header, encoding)
    if opened:
        yield from document.end_or_count_empty(opened)


def _add_unmarked(
    document: Document, lines: Lines, header: list[Line], encoding: str
) -> Iterator[str]:
    lines.add_odd("unmarked_files", header[0])
    for line in header:
        yield from document.add_line(lines.decode(line, encoding).strip(), line)


def _encoding(name: str) -> str:
    """Returns Python's name of a single-byte character set, or utf-8 for other names."""
    if re.match(r"iso[- ]latin-?1", name, re.IGNORECASE):
        return "iso-8859-1"
    if numbered := _SINGLE_BYTE_SETS.match(name):
        prefix = "iso-8859-" if name.lower().startswith("iso") else "cp"
        with contextlib.suppress(LookupError):
            return codecs.lookup(prefix + numbered[1]).name
    return "utf-8"


def _tidy_book(paragraph: str, number: int) -> str:
    if number < _CREDIT_PARAGRAPHS and _CREDITS.match(paragraph):
        return ""
    return _EMPHASIS.sub(r"\1", paragraph)
