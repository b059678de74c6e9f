"""Converts tags of any scheme to entities, and entities to IOB2 tags.

    IOB1   I-PER I-PER O I-LOC B-LOC     B only if an entity follows another of the same type
    IOB2   B-PER I-PER O B-LOC B-LOC     B starts every entity
    BIOES  B-PER E-PER O S-LOC S-LOC     E ends an entity, S is an entity of one word

An entity is (type, index of its first word, index after its last word). Tags are read by the rules
of the official scorer conlleval, which find entities in every sequence of tags, even if the tags
violate their scheme (see `continues_entity`).

A model may have labels of no scheme, which are entity types such as PER; see `label_tags`.
"""

from collections.abc import Iterable, Sequence

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")  # Prefixes of tags inside entities.

Entity = tuple[str, int, int]


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag such as B-creative-work into its prefix and its type, which is "" for O."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def is_tag(name: str) -> bool:
    """Returns whether a name is O, or one of `PREFIXES`, alone or with a dash and a type."""
    prefix, kind = split_tag(name)
    return name == OUTSIDE or (prefix in PREFIXES and (kind != "" or "-" not in name))


def label_tags(labels: Sequence[str]) -> list[str]:
    """Converts the labels of a model to tags.

    A label that is not a tag, such as PER or LABEL_3, is an entity type and becomes I-PER or
    I-LABEL_3: adjacent words with this label are one entity. As in the token-classification
    pipeline of transformers, this holds for each label on its own (B-PER and LOC may occur in one
    model), and only O is outside, even if no label is O.

    B, I, E and S without a type are tags, except in a model with a label that is not a tag. In such
    a model they are types, too.
    """
    has_types = not all(map(is_tag, labels))
    return [
        f"I-{label}" if not is_tag(label) or (has_types and label in PREFIXES) else label
        for label in labels
    ]


def is_inside(tag: str) -> bool:
    """Returns whether a word with this tag belongs to an entity."""
    return split_tag(tag)[0] != OUTSIDE


def continues_entity(tag: str, previous: str) -> bool:
    """Returns whether a word belongs to the entity of the previous word, given the tags of both.

    It does if the types are equal, its own tag is not B or S, and the previous tag is not E or S.
    At the start of a sentence, `previous` is O.
    """
    (prefix, kind), (previous_prefix, previous_kind) = split_tag(tag), split_tag(previous)
    return (
        prefix not in (OUTSIDE, "B", "S")
        and previous_prefix not in (OUTSIDE, "E", "S")
        and kind == previous_kind
    )


def entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities of a sentence, in order, from tags of any scheme, as conlleval does."""
    found: list[Entity] = []
    for place, (previous, tag) in enumerate(zip([OUTSIDE, *tags], tags, strict=False)):
        if continues_entity(tag, previous):
            kind, start, _ = found.pop()
            found.append((kind, start, place + 1))
        elif is_inside(tag):
            found.append((split_tag(tag)[1], place, place + 1))
    return found


def iob2_tags(found: Iterable[Entity], num_words: int) -> list[str]:
    """Converts entities that do not overlap to the IOB2 tags of `num_words` words."""
    tags = [OUTSIDE] * num_words
    for kind, start, end in found:
        tags[start:end] = [iob2_tag("B", kind)] + [iob2_tag("I", kind)] * (end - start - 1)
    return tags


def iob2_tag(prefix: str, kind: str) -> str:
    """Joins a prefix and a type with a dash, without the dash if the type is empty."""
    return f"{prefix}-{kind}" if kind else prefix
