"""Joins lines to paragraphs and splits paragraphs into the sentences of a document.

A document that exceeds MAX_DOCUMENT_LENGTH or MAX_DOCUMENT_SENTENCES is yielded in several parts,
which bounds memory.
"""

from collections.abc import Callable, Iterator

from data_tools.corpus.sentences import split_sentences
from data_tools.corpus.units import Unit, Units

# A part is never split over shards, so it is small compared with the shard limits in `partition`.
MAX_DOCUMENT_LENGTH = 8 << 20  # characters
MAX_DOCUMENT_SENTENCES = 250_000
MAX_PARAGRAPH_LENGTH = 1 << 20


def is_over_long(length: int, num_sentences: int) -> bool:
    """Returns whether a document must be split because its part read so far is too long.

    `length` is the number of characters of this part.
    """
    return length > MAX_DOCUMENT_LENGTH or num_sentences > MAX_DOCUMENT_SENTENCES


class Document:
    """The document that is being read; its methods yield texts with one sentence per line.

    Odd input is counted with `units.add_odd`. `tidy(text, index)` returns the cleaned text of the
    paragraph with this index in the document, before it is split into sentences.
    """

    def __init__(self, units: Units, language: str, tidy: Callable[[str, int], str] | None = None):
        self._units, self._language, self._tidy = units, language, tidy
        self.drop()

    def drop(self) -> None:
        """Discards the current document and starts a new one."""
        self._paragraph: list[str] = []
        self._sentences: list[str] = []
        self._paragraph_length = self._length = self._num_paragraphs = 0
        self._is_in_parts = False

    def add_line(self, text: str, line: Unit | None) -> Iterator[str]:
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
        if self._tidy:
            paragraph = self._tidy(paragraph, self._num_paragraphs)
        self._sentences += split_sentences(paragraph, self._language)
        self._length += len(paragraph)
        self._num_paragraphs += 1
        self._paragraph, self._paragraph_length = [], 0

    def end(self) -> Iterator[str]:
        """Ends the document; yields its remaining sentences, if any."""
        self.end_paragraph()
        yield from self._take_sentences()
        self.drop()

    def end_or_count_empty(self, opened: Unit | None) -> Iterator[str]:
        """Ends the document; counts an empty one as odd input at the line or row where it began."""
        self.end_paragraph()
        if not self._sentences and not self._is_in_parts:
            self._units.add_odd("empty_documents", opened)
        yield from self.end()

    def of_paragraphs(self, paragraphs: list[str], line: Unit | None) -> Iterator[str]:
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
