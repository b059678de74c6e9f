"""Splits running text into sentences, and joins lines to paragraphs and documents.

The rules are those of the package sentencex. A full stop ends a sentence unless it belongs to an
abbreviation of the language, a number or an initial. Chinese and Japanese full stops need no white
space after them. A Japanese quotation is split from the clause that follows it: 「行きますか？」
と彼は聞いた。

tensorflow-text's StateBasedSentenceBreaker was tested and rejected: it splits after "Mr.", inside
"e.g." and inside "3.14", and moves a closing quote to the start of the next sentence.
"""

from collections.abc import Iterator
from typing import Any

import sentencex

from data_tools.lines import Units
from keras_bert.errors import InputError

# --- sentences ---

# ISO 639-1 codes, to catch typing errors. For an unknown language, the package silently uses the
# rules of English, which are right for most languages.
_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da
de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz
ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln
lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi
pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_CODES.split())

# The package's run time is quadratic in the length of the text after an unclosed quote, so long
# text is passed in parts of this many characters. A longer sentence is split.
_MAX_SEGMENT_LENGTH = 1 << 15


def check_language(language: str) -> None:
    """Raises an `InputError` if `language` is not an ISO 639-1 code."""
    if language not in LANGUAGES:
        raise InputError(
            f"--language={language}: expected a two-letter ISO 639-1 code, for example en, de or zh"
        )


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits a paragraph into non-empty sentences without surrounding white space.

    Line ends in `text` count as spaces. `language` is an ISO 639-1 code.
    """
    text = text.replace("\n", " ")
    if len(text) <= _MAX_SEGMENT_LENGTH:
        sentences = sentencex.segment(language, text)
    else:
        sentences = _split_long(text, language)
    return [sentence for sentence in map(str.strip, sentences) if sentence]


def _split_long(text: str, language: str) -> list[str]:
    sentences: list[str] = []
    rest = ""
    for start in range(0, len(text), _MAX_SEGMENT_LENGTH):
        sentences += sentencex.segment(language, rest + text[start : start + _MAX_SEGMENT_LENGTH])
        rest = sentences.pop()  # continues in the next part
        if len(rest) >= _MAX_SEGMENT_LENGTH:
            at = rest.rfind(" ", 1) + 1 or len(rest)
            sentences.append(rest[:at])
            rest = rest[at:]
    return [*sentences, rest]


# --- documents ---

# A part is never split over shards, so it is small compared with the shard limits in `build`.
MAX_DOCUMENT_LENGTH = 8 << 20  # characters
MAX_DOCUMENT_SENTENCES = 250_000
MAX_PARAGRAPH_LENGTH = 1 << 20


def is_over_long(length: int, num_sentences: int) -> bool:
    """Returns whether a document must be split because its part read so far is too long."""
    return length > MAX_DOCUMENT_LENGTH or num_sentences > MAX_DOCUMENT_SENTENCES


class Document:
    """The document that is being read; its methods yield texts with one sentence per line.

    A document that exceeds MAX_DOCUMENT_LENGTH or MAX_DOCUMENT_SENTENCES is yielded in several
    parts, which bounds memory. Odd input is counted with `units.add_odd`.
    """

    def __init__(self, units: Units, language: str):
        self._units, self._language = units, language
        self._paragraph: list[str] = []
        self._sentences: list[str] = []
        self._paragraph_length = self._length = 0
        self._is_in_parts = False

    def add_line(self, text: str, line: Any) -> Iterator[str]:
        """Adds a line to the current paragraph; an empty `text` ends the paragraph.

        If the document is over-long, yields its sentences so far. `line` is the place of the text
        in the file.
        """
        if not text:
            self.end_paragraph()
            return
        self._paragraph.append(text)
        self._paragraph_length += len(text)
        if self._paragraph_length > MAX_PARAGRAPH_LENGTH:
            self.end_paragraph()
        if is_over_long(self._length, len(self._sentences)):
            if not self._is_in_parts:
                self._units.add_odd("long_documents", line)
            yield from self._take_sentences()
            self._is_in_parts = True

    def end_paragraph(self) -> None:
        """Ends the current paragraph, if there is one."""
        if not self._paragraph:
            return
        paragraph = " ".join(self._paragraph)
        self._sentences += split_sentences(paragraph, self._language)
        self._length += len(paragraph)
        self._paragraph, self._paragraph_length = [], 0

    def end(self) -> Iterator[str]:
        """Ends the document; yields its remaining sentences, if any."""
        self.end_paragraph()
        yield from self._take_sentences()
        self._is_in_parts = False

    def end_or_count_empty(self, opened: Any) -> Iterator[str]:
        """Ends the document; counts an empty one as odd input at the line or row where it began."""
        self.end_paragraph()
        if not self._sentences and not self._is_in_parts:
            self._units.add_odd("empty_documents", opened)
        yield from self.end()

    def of_paragraphs(self, paragraphs: list[str], line: Any) -> Iterator[str]:
        """Yields a document, given its paragraphs, which are all from one line or row."""
        for paragraph in paragraphs:
            start = 0
            while start < len(paragraph):
                end = start + MAX_PARAGRAPH_LENGTH
                if end < len(paragraph):
                    end = paragraph.rfind(" ", start + 1, end) + 1 or end
                yield from self.add_line(paragraph[start:end].strip(), line)
                start = end
            self.end_paragraph()
        yield from self.end_or_count_empty(line)

    def _take_sentences(self) -> Iterator[str]:
        if self._sentences:
            yield "\n".join(self._sentences)
        self._sentences, self._length = [], 0
