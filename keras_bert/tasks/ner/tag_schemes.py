"""Converts tags of any scheme to entities, and entities to IOB2 tags.

    IOB1   I-PER I-PER O I-LOC B-LOC     B only if an entity follows another of the same type
    IOB2   B-PER I-PER O B-LOC B-LOC     B starts every entity
    BIOES  B-PER E-PER O S-LOC S-LOC     E ends an entity, S is an entity of one word
    BILOU  B-PER L-PER O U-LOC U-LOC     as BIOES: L is E, and U is S
    BMES   B-PER E-PER O S-LOC S-LOC     as BIOES: M is I
    BMEWO  B-PER E-PER O W-LOC W-LOC     as BIOES: M is I, and W is S
    IO     PER   PER   O LOC   LOC       adjacent words of a type are one entity

An entity is (type, index of its first word, index after its last word). Tags are read by the rules
of the official scorer conlleval, which find entities in every sequence of tags, even if the tags
violate their scheme (see `continues_entity`). The tag - of spaCy means that the label of a word is
unknown.

A model may have labels of no scheme, which are entity types such as PER; see `label_tags`.
"""

from collections.abc import Iterable, Sequence

OUTSIDE = "O"
UNKNOWN = "-"
PREFIXES = ("B", "I", "E", "S")  # Prefixes of tags inside entities.

# Scheme -> the prefixes of its tags inside entities, or "" for types without a prefix.
SCHEMES = {
    "iob2": "BI",
    "iob1": "BI",
    "bioes": "BIES",
    "bilou": "BILU",
    "bmes": "BMES",
    "bmewo": "BMEW",
    "io": "",
}
_NOT_INSIDE = (OUTSIDE, "")  # The prefixes of O and of -.
_STANDARD_PREFIX = {"M": "I", "L": "E", "U": "S", "W": "S"}

Entity = tuple[str, int, int]


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag such as B-creative-work into its prefix and its type, which is "" for O."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def is_tag(name: str, prefixes: Iterable[str] = PREFIXES) -> bool:
    """Returns whether a name is O, or one of `prefixes`, alone or with a dash and a type."""
    prefix, kind = split_tag(name)
    return name == OUTSIDE or (prefix in tuple(prefixes) and (kind != "" or "-" not in name))


def standard_tag(tag: str) -> str:
    """Replaces the prefixes M, L, U and W of a tag by those of BIOES."""
    prefix, kind = split_tag(tag)
    return iob2_tag(_STANDARD_PREFIX.get(prefix, prefix), kind)


def schemes_of(names: Iterable[str]) -> list[str]:
    """Lists the schemes whose prefixes all of these tags have."""
    return [
        scheme
        for scheme, letters in SCHEMES.items()
        if letters and all(is_tag(name, letters) for name in names)
    ]


def label_tags(labels: Sequence[str]) -> list[str]:
    """Converts the labels of a model to tags with the prefixes of BIOES.

    A label that is not a tag, such as PER or LABEL_3, is an entity type and becomes I-PER or
    I-LABEL_3: adjacent words with this label are one entity. As in the token-classification
    pipeline of transformers, this holds for each label on its own (B-PER and LOC may occur in one
    model), and only O is outside, even if no label is O.

    L and U are prefixes of BILOU if a type has a label with one of them and a label with another
    prefix of BILOU, and likewise M and W of BMES and BMEWO. Otherwise, U-PER is a type.

    B, I, E and S without a type are tags, except in a model with a label that is not a tag. In such
    a model they are types, too.
    """
    pairs = {split_tag(label) for label in labels}
    for letters in ("BILU", "BMEW"):
        prefixes_of = {
            kind: {letter for letter in letters if (letter, kind) in pairs} for _, kind in pairs
        }
        if any(
            prefixes & _STANDARD_PREFIX.keys() and len(prefixes) > (1 if kind else 2)
            for kind, prefixes in prefixes_of.items()
        ):
            labels = [standard_tag(x) if is_tag(x, letters) else x for x in labels]
    has_types = not all(map(is_tag, labels))
    return [
        f"I-{label}" if not is_tag(label) or (has_types and label in PREFIXES) else label
        for label in labels
    ]


def is_inside(tag: str) -> bool:
    """Returns whether a word with this tag belongs to an entity."""
    return split_tag(tag)[0] not in _NOT_INSIDE


def continues_entity(tag: str, previous: str) -> bool:
    """Returns whether a word belongs to the entity of the previous word, given the tags of both.

    It does if the types are equal, its own tag is not B or S, and the previous tag is not E or S.
    At the start of a sentence, `previous` is O.
    """
    (prefix, kind), (previous_prefix, previous_kind) = split_tag(tag), split_tag(previous)
    return (
        prefix not in (*_NOT_INSIDE, "B", "S")
        and previous_prefix not in (*_NOT_INSIDE, "E", "S")
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


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Converts a sentence's tags of any scheme to IOB2, by the rules of conlleval."""
    converted = iob2_tags(entities(tags), len(tags))
    return [UNKNOWN if tag == UNKNOWN else new for tag, new in zip(tags, converted, strict=True)]


def iob2_tag(prefix: str, kind: str) -> str:
    """Joins a prefix and a type with a dash, without the dash if the type is empty."""
    return f"{prefix}-{kind}" if kind else prefix
