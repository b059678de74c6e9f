"""Tags and entities: tags of any scheme in; entities, or tags of one scheme, out.

    IOB1   I-PER I-PER O I-LOC B-LOC     B only where an entity follows another of its type
    IOB2   B-PER I-PER O B-LOC B-LOC     B starts every entity
    BIOES  B-PER E-PER O S-LOC S-LOC     E ends an entity, S is one of a single word

An entity is (type, first word, word after the last). Tags are read as conlleval reads them, so that
each sequence means something, even one that its scheme does not allow: an entity goes on as long as
its type does, and B, S, or the word after E or S, starts another one.
"""

from collections.abc import Iterable, Sequence

OUTSIDE = "O"

Entity = tuple[str, int, int]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities of a sentence, as conlleval does.

    Args:
        tags: W tags of any scheme.

    Returns:
        (type, first word, word after the last), in order.
    """
    found: list[Entity] = []
    start, previous = None, (OUTSIDE, "")
    for place, (prefix, kind) in enumerate([*map(split_tag, tags), (OUTSIDE, "")]):
        begins = prefix in ("B", "S") or previous[0] in (OUTSIDE, "E", "S") or kind != previous[1]
        if start is not None and (prefix == OUTSIDE or begins):
            found.append((previous[1], start, place))
            start = None
        if prefix != OUTSIDE and begins:
            start = place
        previous = (prefix, kind)
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
        rest = f"-{kind}" if kind else ""
        tags[start:end] = [f"B{rest}"] + [f"I{rest}"] * (end - start - 1)
    return tags


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag at its first dash.

    Args:
        tag: such as B-PER, B-creative-work, O, or I of entities that have no type.

    Returns:
        The prefix and the type, "" if there is none.
    """
    prefix, _, kind = tag.partition("-")
    return prefix, kind
