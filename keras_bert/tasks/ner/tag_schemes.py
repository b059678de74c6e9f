"""Tags of words: their schemes, the entities that they mean, and the labels of a model.

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

A model may have labels of no scheme, which are entity types such as PER; see `label_tags`. An
entity of a text, {"start": 3, "end": 7, "type": "LOC"} with offsets in characters, becomes tags of
the words of the text; see `fit_entities`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.checks import head_labels

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


def _is_tag(name: str, prefixes: Iterable[str] = PREFIXES) -> bool:
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
        if letters and all(_is_tag(name, letters) for name in names)
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
            labels = [standard_tag(x) if _is_tag(x, letters) else x for x in labels]
    has_types = not all(map(_is_tag, labels))
    return [
        f"I-{label}" if not _is_tag(label) or (has_types and label in PREFIXES) else label
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
    spans: list[Entity] = []
    for index, (previous, tag) in enumerate(zip([OUTSIDE, *tags], tags, strict=False)):
        if continues_entity(tag, previous):
            kind, start, _ = spans.pop()
            spans.append((kind, start, index + 1))
        elif is_inside(tag):
            spans.append((split_tag(tag)[1], index, index + 1))
    return spans


def iob2_tags(spans: Iterable[Entity], num_words: int) -> list[str]:
    """Converts entities that do not overlap to the IOB2 tags of `num_words` words."""
    tags = [OUTSIDE] * num_words
    for kind, start, end in spans:
        tags[start:end] = [iob2_tag("B", kind)] + [iob2_tag("I", kind)] * (end - start - 1)
    return tags


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Converts a sentence's tags of any scheme to IOB2, by the rules of conlleval."""
    converted = iob2_tags(entities(tags), len(tags))
    return [UNKNOWN if tag == UNKNOWN else new for tag, new in zip(tags, converted, strict=True)]


def iob2_tag(prefix: str, kind: str) -> str:
    """Joins a prefix and a type with a dash, without the dash if the type is empty."""
    return f"{prefix}-{kind}" if kind else prefix


# --- the scheme of a file ---

# A name that is a tag of no scheme, and hardly a type: b-PER, B_PER, PER-B, B-, o and 0.
_NO_TYPE = re.compile(r"\w?[-_.:/].*|.*[-_.:/][BIELSUMWO]?|[o0]")


def check_tags(
    tags: Sequence[Sequence[str]], where: Callable[[int, int], str], scheme: str = ""
) -> tuple[list[list[str]], str, int]:
    """Detects the tag scheme of a file, and counts the tags that violate it.

    Types without a prefix are the scheme IO, if no tag of the file has a prefix.

    Args:
        tags: the tags of each sentence.
        where: a function (sentence, word) -> the place of a tag, for error messages.
        scheme: one of `SCHEMES`; if empty, of the schemes that have the prefixes of all tags, the
            first one that the fewest tags violate.

    Returns:
        The tags of each sentence, O, - or with the prefixes of BIOES; the scheme; and the number of
        tags that would be others if their entities were written in the scheme.

    Raises:
        InputError: a tag has an unknown prefix or no type after its dash.
    """
    names = {tag for row in tags for tag in row}
    types = names - {OUTSIDE, UNKNOWN}
    schemes = [scheme] if scheme else schemes_of(types)
    if not schemes and OUTSIDE in names and not any(map(_NO_TYPE.fullmatch, types)):
        schemes = ["io"]
    if schemes != ["io"]:
        # The prefixes of the scheme that most tags have; tags of another one violate `scheme`.
        letters = [{*PREFIXES, *SCHEMES[scheme]}] if scheme else map(set, SCHEMES.values())
        allowed = max(letters, key=lambda each: sum(_is_tag(name, each) for name in types))
        for sentence, row in enumerate(tags):
            for word, tag in enumerate(row):
                if tag in types and not _is_tag(tag, allowed):
                    raise InputError(
                        f"{where(sentence, word)}: tag {tag!r}; expected O, or B, I, E or S (or "
                        "the prefixes of BILOU, BMES or BMEWO), a dash and a type, such as B-PER; "
                        "for types without a prefix, set --tag_scheme=io"
                    )
    # Files in IO may have the prefix I, too.
    is_bare = schemes == ["io"] and not all(name.startswith("I-") for name in types)
    tag_of = {name: f"I-{name}" if is_bare else standard_tag(name) for name in types}
    tag_of |= {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    rows = [[tag_of[tag] for tag in row] for row in tags]
    counts = {name: sum(_count_violations(row, name) for row in rows) for name in schemes}
    scheme = min(schemes, key=counts.get)
    return rows, scheme, counts[scheme]


def _count_violations(tags: Sequence[str], scheme: str) -> int:
    """Returns the number of tags that differ from those of their entities in a scheme.

    `tags` have the prefixes of BIOES. Next to -, all tags are allowed.
    """
    if scheme == "io":
        return 0
    written = iob2_tags(entities(tags), len(tags))
    if scheme == "iob1":
        written = [
            tag if not is_inside(tag) or _is_same_type(previous, tag) else f"I{tag[1:]}"
            for previous, tag in pairwise([OUTSIDE, *written])
        ]
    elif scheme != "iob2":
        written = [
            _last_tag(tag) if is_inside(tag) and not continues_entity(following, tag) else tag
            for tag, following in pairwise([*written, OUTSIDE])
        ]
    padded = [OUTSIDE, *tags, OUTSIDE]
    return sum(
        tag != tags[index] and UNKNOWN not in padded[index : index + 3]
        for index, tag in enumerate(written)
    )


def _is_same_type(tag: str, following: str) -> bool:
    return is_inside(tag) and split_tag(tag)[1] == split_tag(following)[1]


def _last_tag(tag: str) -> str:
    """Converts the IOB2 tag of the last word of an entity to BIOES: B to S and I to E."""
    prefix, kind = split_tag(tag)
    return iob2_tag({"B": "S", "I": "E"}[prefix], kind)


# --- entities of texts ---

ENTITY = {"start": int, "end": int, "type": str}  # The schema of an entity.
# How entities of a text may not fit its words, by the name of their number in results.json.
PROBLEMS = {
    "misaligned_spans": "spans extended to whole words",
    "overlapping_spans": "spans dropped because they overlap a longer one",
    "spans_without_words": "spans dropped because they contain no word",
}


def check_entities_of_text(
    items: Sequence[Mapping[str, Any]], text: str, where: str
) -> list[Entity]:
    """Checks the values of a text's entities, which match the schema; returns (type, start, end).

    `where` is the name of the list in error messages.
    """
    for index, item in enumerate(items):
        if not 0 <= item["start"] < item["end"] <= len(text) or not item["type"].strip():
            raise InputError(
                f"{where}[{index}] is {item!r:.80}; expected a type, and 0 <= start < end <= "
                f"{len(text)}, the length of the text"
            )
    return [(item["type"].strip(), int(item["start"]), int(item["end"])) for item in items]


def fit_entities(
    text: str, entities: Sequence[Entity], words: Sequence[tuple[int, int]]
) -> tuple[list[str], list[tuple[str, int, str]]]:
    """Converts the entities of a text to IOB2 tags, one for each word.

    Entities are extended to whole words, and of overlapping ones, the longest is used. White space
    around an entity is ignored, and so are repeated entities.

    Args:
        text: the text.
        entities: (type, start, end) of each entity, with character offsets.
        words: (start, end) of each word, with character offsets.

    Returns:
        The tags; and for each entity that does not fit the words, a name of PROBLEMS, the index of
        the entity, and a description.
    """
    problems: list[tuple[str, int, str]] = []

    def report(problem: str, index: int, in_words: str = "") -> None:
        kind, start, end = entities[index]
        quoted = f"characters {start} to {end}, {text[start:end]!r:.60} ({kind})"
        problems.append((problem, index, quoted + in_words))

    spans: list[tuple[int, int, int]] = []  # (first word, word after the last, index)
    unique = {entity: index for index, entity in reversed([*enumerate(entities)])}
    for (_, start, end), index in sorted(unique.items(), key=lambda item: item[1]):
        # The first word with one of the characters, and the word after the last.
        first = bisect_right(words, start, key=lambda word: word[1])
        last = bisect_left(words, end, key=lambda word: word[0])
        if first >= last:
            report("spans_without_words", index)
            continue
        quoted = text[start:end]
        stripped = start + len(quoted) - len(quoted.lstrip()), start + len(quoted.rstrip())
        extended = words[first][0], words[last - 1][1]
        if extended != stripped:
            in_words = (
                f", in the words {extended[0]} to {extended[1]}, {text[slice(*extended)]!r:.60}"
            )
            report("misaligned_spans", index, in_words)
        spans.append((first, last, index))
    # The longest span in characters first.
    spans.sort(key=lambda span: (words[span[0]][0] - words[span[1] - 1][1], span[0]))
    is_taken = [False] * len(words)
    separate: list[Entity] = []
    for first, last, index in spans:
        # A span overlaps one that is at least as long only if its first or last word is in both.
        if is_taken[first] or is_taken[last - 1]:
            report("overlapping_spans", index)
        else:
            separate.append((entities[index][0], first, last))
            is_taken[first:last] = [True] * (last - first)
    return iob2_tags(separate, len(words)), problems


def exact_tags(
    text: str, entities: Sequence[Entity], words: Sequence[tuple[int, int]], where: str
) -> list[str]:
    """Converts entities as `fit_entities` does, but rejects those that do not fit the words.

    Raises:
        InputError: an entity does not consist of complete words, or overlaps another one; `where`
            is the name of the list in the message.
    """
    tags, problems = fit_entities(text, entities, words)
    for _, index, description in problems:
        raise InputError(
            f"{where}[{index}]: {description}; expected complete words that are in no other entity"
        )
    return tags


# --- the labels of a model ---


def entity_types(labels: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of a model's labels."""
    return sorted({split_tag(tag)[1] for tag in label_tags(labels) if is_inside(tag)})


def label_names(checkpoint: Checkpoint, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the labels of a tagger, in the order of the logits.

    `names` are entity types or IOB2 tags, or a name for each logit of the checkpoint's head. If
    None, the labels are the checkpoint's. As in transformers, a tagger without label names has
    LABEL_0, LABEL_1, and so on.

    Raises:
        InputError: neither the checkpoint nor `names` has labels, `names` are invalid, or they do
            not match the checkpoint's head.
    """
    path = checkpoint.path
    labels, is_named = head_labels(checkpoint, names, _tags_of_types)
    if not labels or not (is_named or checkpoint.architecture == "BertForTokenClassification"):
        raise InputError(
            f"{path}: has no label names; expected a tagger, or entity types such as "
            'labels=["PER", "LOC"]'
        )
    if not is_named:
        logging.warning(
            "%s: has no label names; each of %s is an entity type. Set id2label in config.json or "
            'labels=["O", "PER", ...], in the order of the logits',
            path,
            ", ".join(labels)[:200],
        )
    check_labels(labels, path if names is None else "labels")
    return tuple(labels)


def iob2_labels(types: Iterable[str]) -> list[str]:
    """Lists the IOB2 tags of entity types: O, then B and I of each type."""
    return [OUTSIDE, *(iob2_tag(prefix, kind) for kind in types for prefix in "BI")]


def check_labels(labels: Sequence[str], where: object) -> None:
    """Checks that a tagger's labels are tags or entity types; error messages start with `where`.

    The labels of an unknown scheme are rejected, since X-PER is not an entity type if B-PER is a
    label.
    """
    tags = label_tags(labels)
    types = {split_tag(label)[1] for label in labels if _is_tag(label)} - {""}
    for label, tag in zip(labels, tags, strict=True):
        prefix, kind = split_tag(label)
        if not label or (kind in types and len(prefix) == 1 and tag == f"I-{label}"):
            raise InputError(
                f"{where}: has the labels {', '.join(labels)[:200]}; expected tags, such as O, "
                f"B-PER, I-PER, or entity types, such as PER, got {label!r}"
            )


def tag_ids(tags: Iterable[Sequence[str]], labels: Sequence[str]) -> np.ndarray:
    """Converts the IOB2 tags of sentences with N words in total to indices of `labels`, int32 [N].

    `tags` has a list of tags for each sentence. The labels have any scheme: the index is that of S
    or E at the end of an entity, if the type has such a label, and that of I if it has no B. The
    index of the tag -, an unknown label, is -1.
    """
    ids = {UNKNOWN: -1} | {tag: index for index, tag in enumerate(label_tags(labels))}
    indices = []
    for sentence in tags:
        for tag, following in zip(sentence, [*sentence[1:], OUTSIDE], strict=True):
            kind = split_tag(tag)[1]
            names = [tag, iob2_tag("I", kind)] if is_inside(tag) else [tag]
            if is_inside(tag) and not continues_entity(following, tag):
                names.insert(0, _last_tag(tag))
            name = next((name for name in names if name in ids), None)
            if name is None:
                raise InputError(
                    f"the tag {tag!r} is not one of the model's labels {', '.join(labels)}; "
                    "expected O, and labels of each type for all words of an entity"
                )
            indices.append(ids[name])
    return np.array(indices, np.int32)


def _tags_of_types(names: list[str]) -> list[str]:
    """Converts entity types to IOB2 tags; returns names that are tags unchanged."""
    where = f"labels={names!r:.200}"
    if OUTSIDE not in names:
        if any(split_tag(name)[0] in ("B", "I") for name in names):
            raise InputError(f"{where}: expected entity types such as PER, or tags with O")
        return iob2_labels(names)
    types = list(dict.fromkeys(split_tag(name)[1] for name in names if name != OUTSIDE))
    if sorted(iob2_labels(types)) != sorted(names):
        raise InputError(
            f"{where}: expected IOB2 tags, O and both B and I for each type: "
            f"{', '.join(iob2_labels(types))}"
        )
    return names
