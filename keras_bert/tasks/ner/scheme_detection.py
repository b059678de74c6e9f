"""Detects the tag scheme of a file (see tag_schemes.py), and finds tags that violate it."""

import re
from collections.abc import Sequence

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    PREFIXES,
    SCHEMES,
    UNKNOWN,
    is_tag,
    schemes_of,
    split_tag,
    standard_tag,
)

# A name that is a tag of no scheme, and hardly a type: b-PER, B_PER, PER-B, B-, o and 0.
_NO_TYPE = re.compile(r"\w?[-_.:/].*|.*[-_.:/][BIELSUMWO]?|[o0]")


def check_tags(
    sentences: Sequence[Sentence], path: object, scheme: str = "", strict: bool = False
) -> tuple[list[list[str]], str, int]:
    """Detects the tag scheme of a file, and counts the tags that violate it.

    Types without a prefix are the scheme IO, if no tag of the file has a prefix.

    Args:
        sentences: the sentences of the file.
        path: the file; error messages start with it.
        scheme: one of `SCHEMES`; if empty, of the schemes that have the prefixes of all tags, the
            first one that the fewest tags violate.
        strict: whether a tag that violates the scheme is an error.

    Returns:
        The tags of each sentence, O, - or with the prefixes of BIOES; the scheme; and the number of
        tags that violate the scheme.

    Raises:
        InputError: a tag has an unknown prefix or no type after its dash, `strict` is set and a tag
            violates the scheme, or the file has the tag -, but not O.
    """
    names = {tag for sentence in sentences for tag in sentence.tags}
    types = names - {OUTSIDE, UNKNOWN}
    if UNKNOWN in names and OUTSIDE not in names:
        raise InputError(
            f"{path}: has the tag - (unknown label), but not O; expected O for words outside of "
            "entities"
        )
    schemes = [scheme] if scheme else schemes_of(types)
    if not schemes and OUTSIDE in names and not any(map(_NO_TYPE.fullmatch, types)):
        schemes = ["io"]
    if schemes != ["io"]:
        _check_prefixes(sentences, path, types, scheme)
    # Files in IO may have the prefix I, too.
    is_bare = schemes == ["io"] and not all(name.startswith("I-") for name in types)
    tag_of = {name: f"I-{name}" if is_bare else standard_tag(name) for name in types}
    tag_of |= {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    rows = [[tag_of[tag] for tag in sentence.tags] for sentence in sentences]
    pairs = [[split_tag(tag) for tag in row] for row in rows]
    counts = {name: sum(len(_disallowed(row, name)) for row in pairs) for name in schemes}
    scheme = min(schemes, key=counts.get)
    if strict and counts[scheme]:
        sentence, places = next(
            (sentence, places)
            for sentence, row in zip(sentences, pairs, strict=True)
            if (places := _disallowed(row, scheme))
        )
        place = places[0]
        tags = ("the sentence's start", *sentence.tags, "its end")
        raise InputError(
            f"{path}, {sentence.where(place)}: {scheme} does not allow "
            f"{tags[place + 1]!r} between {tags[place]} and {tags[place + 2]}"
        )
    return rows, scheme, counts[scheme]


def _check_prefixes(
    sentences: Sequence[Sentence], path: object, names: set[str], scheme: str
) -> None:
    """Checks that all names are tags of one scheme; reports the first that is not."""
    allowed = [{*letters} for letters in SCHEMES.values()]
    if scheme:  # Tags of another scheme violate it, and are counted.
        allowed = [{*PREFIXES, *SCHEMES[scheme]}]
    allowed = max(allowed, key=lambda letters: sum(is_tag(name, letters) for name in names))
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if tag in names and not is_tag(tag, allowed):
                raise InputError(
                    f"{path}, {sentence.where(place)}: tag {tag!r}; expected O, or B, I, E or S "
                    "(or the prefixes of BILOU, BMES or BMEWO), a dash and a type, such as B-PER; "
                    "for types without a prefix, set --tag_scheme=io"
                )


def _disallowed(pairs: Sequence[tuple[str, str]], scheme: str) -> list[int]:
    """Returns the indices of a sentence's tags that violate a scheme.

    `pairs` are the tags of the sentence, with the prefixes of BIOES, as (prefix, type).
    """
    places = []
    previous = (OUTSIDE, "")
    for place, (prefix, kind) in enumerate(pairs):
        inside = previous[0] != OUTSIDE and previous[1] == kind  # The previous word has this type.
        open_entity = previous[0] in ("B", "I")
        if scheme == "io" or "" in (prefix, previous[0]):  # Next to -, all tags are allowed.
            allowed = True
        elif scheme == "iob1":
            allowed = prefix in ("O", "I") or (prefix == "B" and inside)
        elif scheme == "iob2":
            allowed = prefix in ("O", "B") or (prefix == "I" and inside)
        else:
            continues = prefix in ("I", "E")
            allowed = continues == open_entity and (not continues or inside)
        if not allowed:
            places.append(place)
        previous = (prefix, kind)
    is_unfinished = scheme not in ("io", "iob1", "iob2") and previous[0] in ("B", "I")
    if is_unfinished and len(pairs) - 1 not in places:
        places.append(len(pairs) - 1)
    return places
