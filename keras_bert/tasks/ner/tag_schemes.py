"""Reads entities from tags of any scheme, and writes them as IOB2 tags.

    IOB1   I-PER I-PER O I-LOC B-LOC     B only where an entity follows another of its type
    IOB2   B-PER I-PER O B-LOC B-LOC     B starts every entity
    BIOES  B-PER E-PER O S-LOC S-LOC     E ends an entity, S is an entity of one word

An entity is (type, first word, word after the last). Tags are read as conlleval reads them, so that
every sequence has a meaning, even one that its scheme does not allow (`continues_entity`).
"""

from collections.abc import Iterable, Sequence

OUTSIDE = "O"

Entity = tuple[str, int, int]


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag at its first dash.

    Args:
        tag: such as B-PER, B-creative-work, O, or I of entities without a type.

    Returns:
        The prefix and the type, "" if there is none.
    """
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def is_inside(tag: str) -> bool:
    """Tells whether a word with this tag belongs to an entity."""
    return split_tag(tag)[0] != OUTSIDE


def continues_entity(tag: str, previous: str) -> bool:
    """Tells whether a word belongs to the entity of the word before it.

    An entity continues as long as its type does; B and S, and the word after E or S, start another
    one.

    Args:
        tag: the word's.
        previous: the tag of the word before it, O at the start of a sentence.
    """
    (prefix, kind), (previous_prefix, previous_kind) = split_tag(tag), split_tag(previous)
    return (
        prefix not in (OUTSIDE, "B", "S")
        and previous_prefix not in (OUTSIDE, "E", "S")
        and kind == previous_kind
    )


def entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities of a sentence, as conlleval does.

    Args:
        tags: W tags of any scheme.

    Returns:
        (type, first word, word after the last), in order.
    """
    found: list[Entity] = []
    for place, (previous, tag) in enumerate(zip([OUTSIDE, *tags], tags, strict=False)):
        if continues_entity(tag, previous):
            kind, start, _ = found.pop()
            found.append((kind, start, place + 1))
        elif is_inside(tag):
            found.append((split_tag(tag)[1], place, place + 1))
    return found


def iob2_tags(found: Iterable[Entity], num_words: int) -> list[str]:
    """Writes entities as IOB2 tags.

    Args:
        found: entities that do not overlap.
        num_words: W.

    Returns:
        W tags.
    """
    tags = [OUTSIDE] * num_words
    for kind, start, end in found:
        tags[start:end] = [iob2_tag("B", kind)] + [iob2_tag("I", kind)] * (end - start - 1)
    return tags


def iob2_tag(prefix: str, kind: str) -> str:
    """Joins B or I with a type; a type of "" is not written."""
    return f"{prefix}-{kind}" if kind else prefix
