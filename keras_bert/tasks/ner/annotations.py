"""Checks users' annotations, and aligns entities with the words of their texts."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.checks import check_list, check_same_length, check_strings
from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    UNKNOWN,
    Entity,
    iob2_tags,
    is_inside,
    label_tags,
    schemes_of,
    split_tag,
    standard_tag,
    to_iob2,
)

_EXAMPLE = '{"start": 0, "end": 3, "type": "PER"}'


def entity_types(labels: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of a model's labels."""
    return sorted({split_tag(tag)[1] for tag in label_tags(labels) if is_inside(tag)})


def are_sentences(value: Any) -> bool:
    """Returns whether an argument is a list of sentences (lists of words), and not of texts."""
    items = check_list("inputs", value, "strings, or of lists of words")
    return bool(items) and not isinstance(items[0], str | bytes)


def check_sentences(name: str, value: Any) -> list[list[str]]:
    """Checks that an argument is a list of lists of words, and returns it."""
    items = check_list(name, value, "lists of words")
    sentences = [check_strings(f"{name}[{index}]", item) for index, item in enumerate(items)]
    for index, words in enumerate(sentences):
        if "" in words:
            raise InputError(f"{name}[{index}][{words.index('')}] is ''; expected a word")
    return sentences


def check_word_tags(
    sentences: Sequence[Sequence[str]], tags: Any, labels: Sequence[str]
) -> list[list[str]]:
    """Checks the tags of sentences, and converts them to IOB2 by the rules of conlleval.

    `tags` has a list of tags for each sentence, one tag per word. `labels` are the model's labels.
    The tags must be O, - for an unknown label, `labels`, or tags of one scheme with entity types of
    the model, such as B-PER, or PER for all tags.

    Returns:
        A list of IOB2 tags for each sentence.
    """
    rows = check_list("tags", tags, "lists of tags")
    check_same_length(words=sentences, tags=rows)
    rows = [check_strings(f"tags[{index}]", row) for index, row in enumerate(rows)]
    tag_of = {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    tag_of |= zip(labels, label_tags(labels), strict=True)
    types = entity_types(labels)
    all_names = {tag for row in rows for tag in row}
    names = all_names - tag_of.keys()
    if names and all_names <= {OUTSIDE, UNKNOWN, *types}:
        tag_of |= {name: f"I-{name}" for name in names}
        logging.info("tags: scheme io")
    elif names and (schemes := schemes_of(names)):
        tag_of |= {name: standard_tag(name) for name in names if split_tag(name)[1] in types}
        logging.info("tags: scheme %s", schemes[0])
    checked = []
    for index, (words, row) in enumerate(zip(sentences, rows, strict=True)):
        check_same_length(**{f"words[{index}]": words, f"tags[{index}]": row})
        for place, tag in enumerate(row):
            if tag not in tag_of:
                raise InputError(
                    f"tags[{index}][{place}] is {tag!r}; expected one of {', '.join(labels)}"
                )
        checked.append(to_iob2([tag_of[tag] for tag in row]))
    return checked


def check_entities(texts: Sequence[str], value: Any, labels: Sequence[str]) -> list[list[Entity]]:
    """Checks the entities of texts; returns a list of (type, start, end) for each text.

    `value` has a list of entities {"start": int, "end": int, "type": str} for each text, with
    character offsets. The result is in the same order. `labels` are the model's labels.
    """
    rows = check_list("entities", value, f"lists of entities such as {_EXAMPLE}")
    check_same_length(texts=texts, entities=rows)
    types = entity_types(labels)
    found = []
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        row = check_list(f"entities[{index}]", row, f"entities such as {_EXAMPLE}")
        found.append([])
        for place, entity in enumerate(row):
            where = f"entities[{index}][{place}] is {entity!r:.80}"
            if not isinstance(entity, Mapping) or not {"start", "end", "type"} <= entity.keys():
                raise InputError(f"{where}; expected an entity such as {_EXAMPLE}")
            start, end, kind = entity["start"], entity["end"], entity["type"]
            if not all(isinstance(x, Integral) for x in (start, end)) or not (
                0 <= start < end <= len(text)
            ):
                raise InputError(
                    f"{where}; expected whole numbers with 0 <= start < end <= {len(text)}, the "
                    f"length of texts[{index}]"
                )
            if kind not in types:
                raise InputError(f"{where}; expected a type of {', '.join(types)}")
            found[-1].append((kind, int(start), int(end)))
    return found


def aligned_tags(
    text: str, entities: Sequence[Entity], words: Sequence[tuple[int, int]], where: str
) -> list[str]:
    """Converts the entities of a text to IOB2 tags, one for each word.

    Args:
        text: the text.
        entities: (type, start, end) of each entity, with character offsets.
        words: (start, end) of each word, with character offsets.
        where: the expression for `entities` in error messages, such as "entities[0]".

    Raises:
        InputError: an entity does not consist of complete words, or overlaps another one.
    """
    first = {start: place for place, (start, _) in enumerate(words)}
    last = {end: place for place, (_, end) in enumerate(words)}
    aligned: list[Entity] = []
    owners: dict[int, int] = {}
    for place, (kind, start, end) in enumerate(entities):
        if start not in first or end not in last:
            covered = [(a, b) for a, b in words if a < end and b > start]
            hint = ""
            if covered:
                a, b = covered[0][0], covered[-1][1]
                hint = f", such as {a} to {b}: {text[a:b]!r:.80}"
            raise InputError(
                f"{where}[{place}]: characters {start} to {end}, {text[start:end]!r:.80}, are not "
                f"complete words; expected the start and the end of words{hint}"
            )
        span = range(first[start], last[end] + 1)
        overlapped = next((owners[word] for word in span if word in owners), None)
        if overlapped is not None:
            raise InputError(
                f"{where}[{place}]: characters {start} to {end} overlap {where}[{overlapped}]; "
                "expected entities that do not overlap"
            )
        owners |= dict.fromkeys(span, place)
        aligned.append((kind, span.start, span.stop))
    return iob2_tags(aligned, len(words))
