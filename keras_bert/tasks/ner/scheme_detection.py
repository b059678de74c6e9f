"""Detects the tag scheme of a file (see tag_schemes.py), and finds tags that violate it."""

from collections.abc import Iterable, Sequence

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, is_tag, split_tag

SCHEMES = ("iob2", "iob1", "bioes")


def detect_scheme(sentences: Iterable[Sentence]) -> str:
    """Returns the scheme that the fewest tags violate; in a tie, the first one in `SCHEMES`."""
    counts = dict.fromkeys(SCHEMES, 0)
    for sentence in sentences:
        pairs = [split_tag(tag) for tag in sentence.tags]
        for scheme in SCHEMES:
            counts[scheme] += len(_disallowed(pairs, scheme))
    return min(SCHEMES, key=counts.get)


def check_tags(
    sentences: Sequence[Sentence], path: object, scheme: str = "", strict: bool = False
) -> tuple[str, int]:
    """Checks the tags of a file, and counts the tags that violate the tag scheme.

    Args:
        sentences: the sentences of the file.
        path: the file; error messages start with it.
        scheme: one of `SCHEMES`; if empty, the scheme that the fewest tags violate.
        strict: whether a tag that violates the scheme is an error.

    Returns:
        The scheme, and the number of tags that violate it.

    Raises:
        InputError: a tag has an unknown prefix or no type after its dash, or `strict` is set and a
            tag violates the scheme.
    """
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if not is_tag(tag):
                raise InputError(
                    f"{path}, line {sentence.line + place}: tag {tag!r}; expected O, or B, I, E or "
                    "S, a dash and a type, such as B-PER"
                )
    scheme = scheme or detect_scheme(sentences)
    num_disallowed = 0
    for sentence in sentences:
        places = _disallowed([split_tag(tag) for tag in sentence.tags], scheme)
        if places and strict:
            place = places[0]
            tags = ("the sentence's start", *sentence.tags, "its end")
            raise InputError(
                f"{path}, line {sentence.line + place}: {scheme} does not allow "
                f"{tags[place + 1]!r} between {tags[place]} and {tags[place + 2]}"
            )
        num_disallowed += len(places)
    return scheme, num_disallowed


def _disallowed(pairs: Sequence[tuple[str, str]], scheme: str) -> list[int]:
    """Returns the indices of a sentence's tags that violate a scheme.

    `pairs` are the tags of the sentence, as (prefix, type).
    """
    places = []
    previous = (OUTSIDE, "")
    for place, (prefix, kind) in enumerate(pairs):
        inside = previous[0] != OUTSIDE and previous[1] == kind  # The previous word has this type.
        open_entity = previous[0] in ("B", "I")
        if scheme == "iob1":
            allowed = prefix in ("O", "I") or (prefix == "B" and inside)
        elif scheme == "iob2":
            allowed = prefix in ("O", "B") or (prefix == "I" and inside)
        else:
            continues = prefix in ("I", "E")
            allowed = continues == open_entity and (not continues or inside)
        if not allowed:
            places.append(place)
        previous = (prefix, kind)
    is_unfinished = scheme == "bioes" and previous[0] in ("B", "I")
    if is_unfinished and len(pairs) - 1 not in places:
        places.append(len(pairs) - 1)
    return places
