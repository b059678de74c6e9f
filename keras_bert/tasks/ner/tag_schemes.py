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

A model may have labels of no scheme, which are entity types such as PER; see `label_tags`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.checks import check_strings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of

DOCUMENT_START = "-DOCSTART-"  # As the only word of a sentence: a document starts.


@dataclass(frozen=True)
class Sentence:
    """A sentence of W words.

    Attributes:
        words: the W words.
        tags: the W tags in the scheme of the file; empty if the file has no tags.
        line: the line number of the first word, counted from 1; or the number of the object or row
            with the whole sentence, if `unit` is not empty.
        document: the index of the sentence's document in the file; 0 if no line starts a document.
        unit: the unit of `line` in error messages, such as "row", for a sentence of one object.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int
    document: int = 0
    unit: str = ""

    def where(self, index: int) -> str:
        """Describes where the word with an index is, such as "line 3"."""
        if self.unit:
            return f"{self.unit} {self.line}, word {index + 1}"
        return f"line {self.line + index}"


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
    sentences: Sequence[Sentence], path: object, scheme: str = ""
) -> tuple[list[list[str]], str, int]:
    """Detects the tag scheme of a file, and counts the tags that violate it.

    Types without a prefix are the scheme IO, if no tag of the file has a prefix.

    Args:
        sentences: the sentences of the file.
        path: the file; error messages start with it.
        scheme: one of `SCHEMES`; if empty, of the schemes that have the prefixes of all tags, the
            first one that the fewest tags violate.

    Returns:
        The tags of each sentence, O, - or with the prefixes of BIOES; the scheme; and the number of
        tags that violate the scheme.

    Raises:
        InputError: a tag has an unknown prefix or no type after its dash, or the file has the tag
            -, but not O.
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
    return rows, scheme, counts[scheme]


def _check_prefixes(
    sentences: Sequence[Sentence], path: object, names: set[str], scheme: str
) -> None:
    """Checks that all names are tags of one scheme; reports the first that is not."""
    allowed = [{*letters} for letters in SCHEMES.values()]
    if scheme:  # Tags of another scheme violate it, and are counted.
        allowed = [{*PREFIXES, *SCHEMES[scheme]}]
    allowed = max(allowed, key=lambda letters: sum(_is_tag(name, letters) for name in names))
    for sentence in sentences:
        for index, tag in enumerate(sentence.tags):
            if tag in names and not _is_tag(tag, allowed):
                raise InputError(
                    f"{path}, {sentence.where(index)}: tag {tag!r}; expected O, or B, I, E or S "
                    "(or the prefixes of BILOU, BMES or BMEWO), a dash and a type, such as B-PER; "
                    "for types without a prefix, set --tag_scheme=io"
                )


def _disallowed(pairs: Sequence[tuple[str, str]], scheme: str) -> list[int]:
    """Returns the indices of a sentence's tags that violate a scheme.

    `pairs` are the tags of the sentence, with the prefixes of BIOES, as (prefix, type).
    """
    violations = []
    previous = (OUTSIDE, "")
    for index, (prefix, kind) in enumerate(pairs):
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
            violations.append(index)
        previous = (prefix, kind)
    is_unfinished = scheme not in ("io", "iob1", "iob2") and previous[0] in ("B", "I")
    if is_unfinished and len(pairs) - 1 not in violations:
        violations.append(len(pairs) - 1)
    return violations


# --- the labels of a model ---


def entity_types(labels: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of a model's labels."""
    return sorted({split_tag(tag)[1] for tag in label_tags(labels) if is_inside(tag)})


_DEFAULT_NAME = re.compile(r"LABEL_\d+")  # The default label names of transformers.


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
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels
    saved = checkpoint.labels if num_logits else None
    if saved and all(_DEFAULT_NAME.fullmatch(name) for name in saved):
        saved = None
    if names is None:
        labels = saved or _default_names(checkpoint, num_logits)
        check_labels(labels, path)
        return tuple(labels)
    labels = check_strings("labels", names)
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"labels={labels!r:.200}: expected at least one name, and no duplicates")
    ordered = in_order_of(saved, labels)
    if ordered or (not saved and len(labels) == num_logits):
        check_labels(labels, "labels")
    else:
        labels = _tags_of_types(labels)
        ordered = in_order_of(saved, labels)
    if (saved and ordered is None) or (num_logits and num_logits != len(labels)):
        has = f"the labels {', '.join(saved)}" if saved else f"a head of {num_logits} logits"
        raise InputError(
            f"labels={list(names)!r:.200}: {path} has {has}; expected the same; for a new head, "
            "run keras-bert convert SRC DST --noheads"
        )
    return tuple(ordered or labels)


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
            prefix, kind = split_tag(tag)
            names = [tag, iob2_tag("I", kind)] if is_inside(tag) else [tag]
            if is_inside(tag) and not continues_entity(following, tag):
                names.insert(0, iob2_tag({"B": "S", "I": "E"}[prefix], kind))
            name = next((name for name in names if name in ids), None)
            if name is None:
                raise InputError(
                    f"the tag {tag!r} is not one of the model's labels {', '.join(labels)}; "
                    "expected O, and labels of each type for all words of an entity"
                )
            indices.append(ids[name])
    return np.array(indices, np.int32)


def _default_names(checkpoint: Checkpoint, num_logits: int | None) -> list[str]:
    """Returns LABEL_0, LABEL_1, ... for a tagger without label names, and logs a warning.

    Raises InputError if the checkpoint is not a tagger. `num_logits` is None without a head.
    """
    path = checkpoint.path
    if not num_logits or checkpoint.architecture != "BertForTokenClassification":
        raise InputError(
            f"{path}: has no label names; expected a tagger, or entity types such as "
            'labels=["PER", "LOC"]'
        )
    names = checkpoint.labels or [f"LABEL_{index}" for index in range(num_logits)]
    logging.warning(
        "%s: has no label names; each of %s is an entity type. Set id2label in config.json or "
        'labels=["O", "PER", ...], in the order of the logits',
        path,
        ", ".join(names)[:200],
    )
    return names


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
