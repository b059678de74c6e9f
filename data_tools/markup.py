"""Extracts the paragraphs of HTML and Markdown files and Word documents, one document per file.

The parsers of lxml (libxml2) report elements and text as they read a file, so no tree is built and
memory does not grow with the file. Markdown is converted to HTML by markdown-it-py, a CommonMark
parser, which needs the whole file; it may therefore only have MAX_MARKDOWN_BYTES. Headings, list
items and table cells are paragraphs. Scripts, styles, navigation, forms and code blocks of Markdown
are skipped.
"""

import codecs
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from data_tools.lines import BrokenArchiveError, Units, decompressed, is_archive
from data_tools.sentences import Document
from keras_bert.errors import InputError

# --- paragraphs of elements ---

MAX_DEPTH = 1000
_MAX_LENGTH = 1 << 16  # of a paragraph, which ends at the next white space


class _ParagraphTarget:
    """A target of lxml's parsers that collects paragraphs.

    Args:
        path: the file, for error messages.
        skipped: the elements whose content is skipped.
        breaks: the elements whose start and end separate paragraphs.
        text_in: the only element whose text is used; None for all.
        spaces: the elements that stand for a space.
    """

    def __init__(
        self,
        path: str,
        skipped: frozenset[str],
        breaks: frozenset[str],
        text_in: str | None = None,
        spaces: frozenset[str] = frozenset(),
    ):
        self._path, self._skipped, self._breaks = path, skipped, breaks
        self._text_in, self._spaces = text_in, spaces
        self._open: list[str] = []
        self._num_skipping = self._length = 0
        self._parts: list[str] = []
        self._done: list[str] = []

    def take(self) -> list[str]:
        """Returns the paragraphs that are complete, and forgets them."""
        done, self._done = self._done, []
        return done

    def start(self, tag: Any, attributes: Any) -> None:
        """Handles the start of an element."""
        name = _local(tag)
        self._open.append(name)
        if len(self._open) > MAX_DEPTH:
            raise InputError(
                f"{self._path}: elements are nested more than {MAX_DEPTH} deep; expected a "
                "document of normal structure"
            )
        self._num_skipping += name in self._skipped
        if name in self._breaks:
            self._end_paragraph()
        elif name in self._spaces:
            self._parts.append(" ")

    def end(self, tag: Any) -> None:
        """Handles the end of an element."""
        name = _local(tag)
        if self._open:
            self._open.pop()
        self._num_skipping -= name in self._skipped
        if name in self._breaks:
            self._end_paragraph()

    def data(self, text: str) -> None:
        """Handles text, which may be a part of the text of an element."""
        is_text = self._text_in is None or self._open[-1:] == [self._text_in]
        if is_text and not self._num_skipping:
            self._parts.append(text)
            self._length += len(text)
            if self._length > _MAX_LENGTH and text[-1:].isspace():
                self._end_paragraph()

    def comment(self, text: str) -> None:
        """Skips a comment."""

    def pi(self, target: str, data: str | None = None) -> None:
        """Skips a processing instruction."""

    def close(self) -> None:
        """Ends the last paragraph."""
        self._end_paragraph()

    def _end_paragraph(self) -> None:
        if paragraph := " ".join("".join(self._parts).split()):
            self._done.append(paragraph)
        self._parts, self._length = [], 0


def _local(tag: Any) -> str:
    return str(tag).rpartition("}")[2]


# --- files ---

MAX_FILE_BYTES = 256 << 20
MAX_MARKDOWN_BYTES = 4 << 20

_BLOCK_BYTES = 1 << 16
_HEAD_BYTES = 1024  # that may declare the encoding, as in the HTML standard
_DOCX_PART = "word/document.xml"
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*encoding\s*=\s*["']([\w.:-]+)""")
_FRONT_MATTER = re.compile(r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.DOTALL)

_HTML_SKIPPED_NAMES = """
button head iframe math nav noscript object script select style svg template textarea
"""
_HTML_BREAK_NAMES = """
address article aside blockquote body br caption center dd details dialog div dl dt fieldset
figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu ol option
p pre section summary table tbody td tfoot th thead tr ul
"""
_HTML_SKIPPED = frozenset(_HTML_SKIPPED_NAMES.split())
_HTML_BREAKS = frozenset(_HTML_BREAK_NAMES.split())
# Elements of WordprocessingML, without their namespace: deleted text, field codes, and the second
# form of a text box.
_DOCX_SKIPPED = frozenset(["delText", "instrText", "delInstrText", "Fallback", "moveFrom", "rPr"])
_DOCX_BREAKS = frozenset(["p", "tc"])
_DOCX_SPACES = frozenset(["tab", "br", "cr"])


class MarkupFile(Units):
    """A file that is one document.

    `max_bad_line_share` is the maximum fraction of undecodable characters.
    """

    name = "character"

    def __init__(self, path: str, max_bad_line_share: float, open_file: Callable[[str], BinaryIO]):
        super().__init__(path, max_bad_line_share)
        self._open_file = open_file

    def paragraphs(self, form: str) -> Iterator[str]:
        """Yields the paragraphs; `form` is html, markdown or docx.

        Raises:
            InputError: the file cannot be read, is not of this form, is too large or too deeply
                nested; or a package is not installed.
        """
        read = {"html": _html, "markdown": _markdown, "docx": _docx}[form]
        try:
            with self._open_file(self.path) as raw:
                yield from read(self, raw)
        except BrokenArchiveError as error:
            raise InputError(f"{self.path}: broken archive: {error}") from None
        except UnicodeError as error:
            raise InputError(f"{self.path}: cannot be decoded: {error}") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def repaired(self, text: str) -> str:
        """Counts the U+FFFD of undecodable bytes in a text, and replaces NULs.

        A NUL would end the document for the parser.
        """
        if times := text.count("\ufffd") + text.count("\0"):
            self.add_odd("undecodable_bytes", times=times)
            self._num_bad += times - 1
            self._add_bad(self._num_units + 1, "not text in the declared encoding or UTF-8")
        self._num_units += len(text)
        return text.replace("\0", "\ufffd")

    def check_size(self, num_bytes: int, limit: int) -> None:
        """Raises an `InputError` if more than `limit` bytes of the file have been read."""
        if num_bytes > limit:
            raise InputError(
                f"{self.path}: has more than {limit >> 20} MiB of text and markup; expected a "
                "smaller file; split it, or convert it to text for --input_format=prose"
            )


def markup_texts(file: MarkupFile, form: str, language: str) -> Iterator[str]:
    r"""Yields the document of a file, with `\n` between sentences; several if it is over-long."""
    document = Document(file, language)
    for paragraph in file.paragraphs(form):
        yield from document.add_line(paragraph, None)
        document.end_paragraph()
    yield from document.end()


def _lxml(path: str) -> Any:
    try:
        from lxml import etree
    except ImportError:
        raise _missing(path, "lxml") from None
    return etree


def _missing(path: str, package: str) -> InputError:
    return InputError(
        f"{path}: needs the package {package}; install the extra documents: "
        "pip install 'keras-bert-pipeline[documents]'"
    )


def _fed(path: str, parser: Any, target: _ParagraphTarget, blocks: Iterator[Any]) -> Iterator[str]:
    """Feeds blocks to a parser; yields the paragraphs that its target has collected."""
    etree = _lxml(path)
    try:
        for block in blocks:
            parser.feed(block)
            yield from target.take()
        parser.close()
    except etree.LxmlError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be parsed: {reason:.200}") from None
    yield from target.take()


def _html(file: MarkupFile, raw: BinaryIO) -> Iterator[str]:
    target = _ParagraphTarget(file.path, _HTML_SKIPPED, _HTML_BREAKS)
    parser = _lxml(file.path).HTMLParser(target=target, huge_tree=True)
    yield from _fed(file.path, parser, target, _decoded(file, decompressed(file.path, raw)))


def _decoded(file: MarkupFile, stream: Any) -> Iterator[str]:
    """Yields the text of an HTML file in its declared encoding, by default UTF-8."""
    block = b""
    while len(block) < _HEAD_BYTES and (more := stream.read(_HEAD_BYTES)):
        block += more
    decoder = codecs.getincrementaldecoder(_encoding(block[:_HEAD_BYTES]))("replace")
    num_bytes = 0
    while block:
        num_bytes += len(block)
        file.check_size(num_bytes, MAX_FILE_BYTES)
        yield file.repaired(decoder.decode(block))
        block = stream.read(_BLOCK_BYTES)
    yield file.repaired(decoder.decode(b"", final=True))


def _encoding(head: bytes) -> str:
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return name
    named = _XML_ENCODING.search(head) or _CHARSET.search(head)
    name = named[1].decode("ascii", "replace").lower() if named else "utf-8"
    if name in ("iso-8859-1", "latin1", "ascii", "us-ascii"):
        return "cp1252"  # as the HTML standard defines these names
    try:
        return name if codecs.lookup(name)._is_text_encoding else "utf-8"
    except LookupError:
        return "utf-8"


def _markdown(file: MarkupFile, raw: BinaryIO) -> Iterator[str]:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise _missing(file.path, "markdown-it-py") from None
    stream, content = decompressed(file.path, raw), b""
    while block := stream.read(_BLOCK_BYTES):
        content += block
        file.check_size(len(content), MAX_MARKDOWN_BYTES)
    text = file.repaired(content.decode("utf-8-sig", "replace"))
    if front_matter := _FRONT_MATTER.match(text):
        text = text[front_matter.end() :]
    parser = MarkdownIt("commonmark").enable("table")
    tokens = [token for token in parser.parse(text) if token.type not in ("fence", "code_block")]
    target = _ParagraphTarget(file.path, _HTML_SKIPPED, _HTML_BREAKS)
    html_parser = _lxml(file.path).HTMLParser(target=target, huge_tree=True)
    html = parser.renderer.render(tokens, parser.options, {})
    yield from _fed(file.path, html_parser, target, iter([html]))


def _docx(file: MarkupFile, raw: BinaryIO) -> Iterator[str]:
    if is_archive(file.path):
        raise InputError(f"{file.path}: is compressed; expected a .docx file; decompress the file")
    target = _ParagraphTarget(file.path, _DOCX_SKIPPED, _DOCX_BREAKS, "t", _DOCX_SPACES)
    parser = _lxml(file.path).XMLParser(
        target=target, resolve_entities=False, no_network=True, load_dtd=False
    )
    try:
        with zipfile.ZipFile(raw) as archive:
            entry = archive.getinfo(_DOCX_PART)
            file.check_size(entry.file_size, MAX_FILE_BYTES)
            with archive.open(entry) as part:
                blocks = iter(lambda: part.read(_BLOCK_BYTES), b"")
                yield from _fed(file.path, parser, target, blocks)
    except KeyError:
        raise InputError(
            f"{file.path}: contains no {_DOCX_PART}; expected a Word document (.docx)"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{file.path}: cannot be read: {reason:.200}; expected a Word document (.docx) without "
            "a password"
        ) from None
