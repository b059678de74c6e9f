"""Collects the paragraphs of an HTML or XML file as lxml reports its elements and text."""

from typing import Any

from keras_bert.common.errors import InputError

MAX_DEPTH = 1000
_MAX_LENGTH = 1 << 16  # of a paragraph, which ends at the next white space


class ParagraphTarget:
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
