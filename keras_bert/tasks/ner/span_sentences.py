"""Converts texts with character spans to sentences of tagged words.

A text is one sentence and one document. It is split into the words that the exported model finds
(text_words.py). A span that is not made of whole words is extended to whole words. Of overlapping
spans, the longest one is kept. Both are counted, and the first ones are logged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.annotations import aligned_tags
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.ner.span_records import AnnotatedText
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, UNKNOWN, Entity
from keras_bert.tasks.ner.text_words import TextWords
from keras_bert.text.tokenizer import BertTokenizer

_CHUNK_SIZE = 1024  # texts that are split at a time
_NAMED = 3


@dataclass
class SpanCounts:
    """The spans of a file that did not fit the words: how many, and where the first ones are.

    Attributes:
        misaligned: descriptions of spans that were extended to whole words.
        overlapping: descriptions of spans that were dropped because they overlap a longer one.
        without_words: descriptions of spans that were dropped because they contain no word.
    """

    misaligned: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    without_words: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, int]:
        """Returns the numbers of spans, as in results.json."""
        return {
            "misaligned_spans": len(self.misaligned),
            "overlapping_spans": len(self.overlapping),
            "spans_without_words": len(self.without_words),
        }

    def log(self) -> None:
        """Logs a warning for each kind of span that occurs."""
        for problem, found in (
            ("spans extended to whole words", self.misaligned),
            ("spans dropped because they overlap a longer one", self.overlapping),
            ("spans dropped because they contain no word", self.without_words),
        ):
            if found:
                first = "; ".join(found[:_NAMED])
                logging.warning("%s: %d, the first: %s", problem, len(found), first)


def tagged_sentences(
    texts: Sequence[AnnotatedText], tokenizer: BertTokenizer
) -> tuple[list[Sentence], SpanCounts]:
    """Splits texts into words, and converts their spans to IOB2 tags of the words.

    Texts without words are skipped. If a text is not annotated, its sentence has no tags.

    Raises:
        InputError: no text has a word.
    """
    sentences: list[Sentence] = []
    counts = SpanCounts()
    for each, words in zip(texts, _split(texts, tokenizer), strict=True):
        tags: list[str] = []
        if each.spans is not None:
            entities = _fitted(each, words, counts)
            tags = aligned_tags(each.text, entities, words, each.where)
            for start, end in each.unknown:
                covered = slice(*_covered(words, start, end))
                tags[covered] = [UNKNOWN if tag == OUTSIDE else tag for tag in tags[covered]]
        if words:
            strings = tuple(each.text[start:end] for start, end in words)
            sentences.append(Sentence(strings, tuple(tags), each.line, len(sentences), each.unit))
    if not sentences:
        raise InputError(f"{texts[0].where}: contains no words, and neither do the texts after it")
    return sentences, counts


def _split(
    texts: Sequence[AnnotatedText], tokenizer: BertTokenizer
) -> Iterator[list[tuple[int, int]]]:
    """Yields (start, end) of the words of each text, with character offsets."""
    text_words = TextWords(tokenizer)
    for first in range(0, len(texts), _CHUNK_SIZE):
        chunk = tf.constant([each.text for each in texts[first : first + _CHUNK_SIZE]])
        words, spans = text_words.split(chunk)
        places = list(zip(spans.starts.numpy().tolist(), spans.ends.numpy().tolist(), strict=True))
        for start, end in pairwise(words.row_splits.numpy().tolist()):
            yield places[start:end]


def _fitted(
    each: AnnotatedText, words: Sequence[tuple[int, int]], counts: SpanCounts
) -> list[Entity]:
    """Returns the spans of a text that are kept, extended to whole words, in text order."""
    fitted: list[tuple[Entity, int, int]] = []  # A span, its first word and the word after it.
    for kind, start, end in dict.fromkeys(each.spans):
        quoted = each.text[start:end]
        where = f"{each.where}, characters {start} to {end}, {quoted!r:.60}"
        first, last = _covered(words, start, end)
        if first >= last:
            counts.without_words.append(where)
            continue
        fit = (kind, words[first][0], words[last - 1][1])
        stripped = start + len(quoted) - len(quoted.lstrip()), start + len(quoted.rstrip())
        if fit[1:] != stripped:
            counts.misaligned.append(f"{where}, became {each.text[fit[1] : fit[2]]!r:.60}")
        fitted.append((fit, first, last))
    kept: list[Entity] = []
    is_taken = [False] * len(words)
    fitted.sort(key=lambda item: (item[0][1] - item[0][2], item[0][1]))  # The longest span first.
    for (kind, start, end), first, last in fitted:
        # A span overlaps one that is at least as long only if its first or last word is in both.
        if is_taken[first] or is_taken[last - 1]:
            where = f"{each.where}, characters {start} to {end}, {each.text[start:end]!r:.60}"
            counts.overlapping.append(f"{where} ({kind})")
        else:
            kept.append((kind, start, end))
            is_taken[first:last] = [True] * (last - first)
    return sorted(kept, key=lambda entity: entity[1])


def _covered(words: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Returns the first word with characters from `start` to `end`, and the word after the last."""
    return (
        bisect_right(words, start, key=lambda word: word[1]),
        bisect_left(words, end, key=lambda word: word[0]),
    )
