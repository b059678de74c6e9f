"""Converts entities of texts, given by character offsets, to tags of words.

An entity is {"start": 3, "end": 7, "type": "LOC"}; offsets count characters as in Python's `str`.
A text is split into the words that the exported model finds (`TextWords`). For `EntityTagger.fit`,
entities must consist of whole words. Those of a file are extended to whole words, and of
overlapping ones, the longest is used; both are counted, and the first ones are logged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tasks.ner.processor import TextWords, word_offsets
from keras_bert.tasks.ner.tag_schemes import Entity, iob2_tags
from keras_bert.text.offsets import encode_texts
from keras_bert.text.tokenizer import BertTokenizer

ENTITY = '{"start": 0, "end": 3, "type": "PER"}'
Words = Sequence[tuple[int, int]]  # (start, end) of the words of a text, in characters.

_CHUNK_SIZE = 1024  # texts that are split at a time
# How entities of a file may not fit the words, by the name of their number in results.json.
PROBLEMS = {
    "misaligned_spans": "spans extended to whole words",
    "overlapping_spans": "spans dropped because they overlap a longer one",
    "spans_without_words": "spans dropped because they contain no word",
}


def check_entity(value: Any, text: str, where: str) -> Entity:
    """Checks an entity of a text, and returns (type, start, end)."""
    names = ("type", "start", "end")
    kind, start, end = (value.get(x) if isinstance(value, Mapping) else None for x in names)
    is_entity = isinstance(kind, str) and kind.strip()
    if not is_entity or not all(isinstance(x, Integral) for x in (start, end)):
        raise InputError(f"{where} is {value!r:.80}; expected an entity such as {ENTITY}")
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{where} is {value!r:.80}; expected 0 <= start < end <= {len(text)}, the length of "
            "the text"
        )
    return kind.strip(), int(start), int(end)


def split_words(texts: Sequence[str], tokenizer: BertTokenizer) -> Iterator[Words]:
    """Yields the words of each text."""
    text_words = TextWords(tokenizer)
    for first in range(0, len(texts), _CHUNK_SIZE):
        words, spans = text_words.split(
            tf.constant(encode_texts(texts[first : first + _CHUNK_SIZE]))
        )
        yield from word_offsets(spans, words.row_splits)


def fitted_tags(
    text: str,
    entities: Sequence[Entity],
    words: Words,
    where: str,
    problems: Mapping[str, list[str]],
) -> list[str]:
    """Converts the entities of a text of a file to IOB2 tags, extended to whole words.

    Descriptions of entities that do not fit the words are added to the lists of `problems`, which
    has the names of PROBLEMS. `where` describes the text in them.
    """

    def description(start: int, end: int) -> str:
        return f"{where}, characters {start} to {end}, {text[start:end]!r:.60}"

    spans: list[Entity] = []  # (type, first word, index after the last word)
    for kind, start, end in dict.fromkeys(entities):
        first, last = _covered(words, start, end)
        if first >= last:
            problems["spans_without_words"].append(description(start, end))
            continue
        quoted = text[start:end]
        stripped = start + len(quoted) - len(quoted.lstrip()), start + len(quoted.rstrip())
        extended = words[first][0], words[last - 1][1]
        if extended != stripped:
            became = f"{text[slice(*extended)]!r:.60}"
            problems["misaligned_spans"].append(f"{description(start, end)}, became {became}")
        spans.append((kind, first, last))
    # The longest span in characters first.
    spans.sort(key=lambda span: (words[span[1]][0] - words[span[2] - 1][1], span[1]))
    is_taken = [False] * len(words)
    separate: list[Entity] = []
    for kind, first, last in spans:
        # A span overlaps one that is at least as long only if its first or last word is in both.
        if is_taken[first] or is_taken[last - 1]:
            overlap = description(words[first][0], words[last - 1][1])
            problems["overlapping_spans"].append(f"{overlap} ({kind})")
        else:
            separate.append((kind, first, last))
            is_taken[first:last] = [True] * (last - first)
    return iob2_tags(separate, len(words))


def aligned_tags(text: str, entities: Sequence[Entity], words: Words, where: str) -> list[str]:
    """Converts the entities of a text to IOB2 tags, one for each word.

    Args:
        text: the text.
        entities: (type, start, end) of each entity, with character offsets.
        words: (start, end) of each word, with character offsets.
        where: the expression for `entities` in error messages, such as "entities[0]".

    Raises:
        InputError: an entity does not consist of complete words, or overlaps another one.
    """
    spans: list[Entity] = []
    entity_of: dict[int, int] = {}  # The index of the entity of each word.
    for index, (kind, start, end) in enumerate(entities):
        first, last = _covered(words, start, end)
        covered = words[first:last]
        extended = (covered[0][0], covered[-1][1]) if covered else ()
        if extended != (start, end):
            hint = ""
            if extended:
                hint = f", such as {extended[0]} to {extended[1]}: {text[slice(*extended)]!r:.80}"
            raise InputError(
                f"{where}[{index}]: characters {start} to {end}, {text[start:end]!r:.80}, are not "
                f"complete words; expected the start and the end of words{hint}"
            )
        overlapped = next(
            (entity_of[word] for word in range(first, last) if word in entity_of), None
        )
        if overlapped is not None:
            raise InputError(
                f"{where}[{index}]: characters {start} to {end} overlap {where}[{overlapped}]; "
                "expected entities that do not overlap"
            )
        entity_of |= dict.fromkeys(range(first, last), index)
        spans.append((kind, first, last))
    return iob2_tags(spans, len(words))


def _covered(words: Words, start: int, end: int) -> tuple[int, int]:
    """Returns the first word with characters from `start` to `end`, and the word after the last."""
    return (
        bisect_right(words, start, key=lambda word: word[1]),
        bisect_left(words, end, key=lambda word: word[0]),
    )
