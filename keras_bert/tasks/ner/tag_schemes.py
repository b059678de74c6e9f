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
unknown. A model may have labels of no scheme, which are entity types such as PER; see `label_tags`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.checks import head_labels

OUTSIDE = "O"
UNKNOWN = "-"
PREFIXES = "BIES"  # Prefixes of tags inside entities.
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
_STANDARD_PREFIX = {"M": "I", "L": "E", "U": "S", "W": "S"}
Entity = tuple[str, int, int]


# --- tags and entities ---


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag such as B-creative-work into its prefix and its type, which is "" for O."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def join_tag(prefix: str, kind: str) -> str:
    """Joins a prefix and a type with a dash, without the dash if the type is empty."""
    return f"{prefix}-{kind}" if kind else prefix


def is_inside(tag: str) -> bool:
    """Returns whether a word with this tag belongs to an entity."""
    return split_tag(tag)[0] not in (OUTSIDE, "")


def continues_entity(tag: str, previous: str) -> bool:
    """Returns whether a word belongs to the entity of the previous word, given the tags of both.

    It does if the types are equal, its own tag is not B or S, and the previous tag is not E or S.
    At the start of a sentence, `previous` is O.
    """
    (prefix, kind), (previous_prefix, previous_kind) = split_tag(tag), split_tag(previous)
    return (
        prefix not in (OUTSIDE, "", "B", "S")
        and previous_prefix not in (OUTSIDE, "", "E", "S")
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


def tags_of(spans: Sequence[Entity], num_words: int, scheme: str = "iob2") -> list[str]:
    """Converts entities, which do not overlap, to the tags of `num_words` words.

    `scheme` is iob1, iob2, or another one with the prefixes of BIOES.
    """
    tags = [OUTSIDE] * num_words
    previous = ("", 0, -1)
    for kind, start, end in spans:
        prefixes = ["B", *"I" * (end - start - 1)]
        if scheme == "iob1" and (previous[0], previous[2]) != (kind, start):
            prefixes[0] = "I"
        elif scheme not in ("iob1", "iob2"):
            prefixes[-1] = {"B": "S", "I": "E"}[prefixes[-1]]
        tags[start:end] = [join_tag(prefix, kind) for prefix in prefixes]
        previous = kind, start, end
    return tags


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Converts a sentence's tags of any scheme to IOB2, by the rules of conlleval."""
    converted = tags_of(entities(tags), len(tags))
    return [UNKNOWN if tag == UNKNOWN else new for tag, new in zip(tags, converted, strict=True)]


# --- the scheme of a file ---

# A name that is a tag of no scheme, and hardly a type: b-PER, B_PER, PER-B, B-, o and 0.
_NO_TYPE = re.compile(r"\w?[-_.:/].*|.*[-_.:/][BIELSUMWO]?|[o0]")


def _is_tag(name: str, prefixes: str = PREFIXES) -> bool:
    """Returns whether a name is O, or one of `prefixes`, alone or with a dash and a type."""
    prefix, kind = split_tag(name)
    has_prefix = len(prefix) == 1 and prefix in prefixes
    return name == OUTSIDE or (has_prefix and (kind != "" or "-" not in name))


def _standard_tag(tag: str) -> str:
    """Replaces the prefixes M, L, U and W of a tag by those of BIOES."""
    prefix, kind = split_tag(tag)
    return join_tag(_STANDARD_PREFIX.get(prefix, prefix), kind)


def check_tags(
    tags: Sequence[Sequence[str]],
    where: Callable[[int, int], str],
    scheme: str = "",
    types: Sequence[str] = (),
) -> tuple[list[list[str]], str, int]:
    """Detects the tag scheme of some sentences, and counts the tags that violate it.

    Types without a prefix are the scheme IO, if no tag has a prefix. `where` maps (sentence, word)
    to the place of a tag, for error messages. `scheme` is one of `SCHEMES`; if empty, of the
    schemes that have the prefixes of all tags, the first one that the fewest tags violate. `types`
    are known entity types, which are tags of the scheme IO even if no word has the tag O.

    Returns:
        The tags of each sentence in IOB2, by the rules of conlleval; the scheme; and the number of
        tags that would be others if their entities were written in the scheme.
    """
    names = {tag for row in tags for tag in row} - {UNKNOWN}
    inside = names - {OUTSIDE}
    # The number of tags with the prefixes of each scheme; tags of another one violate `scheme`.
    prefixes = {scheme: PREFIXES + SCHEMES[scheme]} if scheme else SCHEMES
    fits = {name: sum(_is_tag(tag, prefixes[name]) for tag in inside) for name in prefixes}
    best = max(fits, key=fits.get)
    schemes = [name for name in fits if fits[name] == len(inside) and SCHEMES[name]]
    has_types = OUTSIDE in names and not any(map(_NO_TYPE.fullmatch, inside))
    is_detected = not scheme and not schemes and (has_types or inside <= {*types})
    if scheme == "io" or is_detected:
        # Files in IO may have the prefix I, too.
        has_prefix = all(tag.startswith("I-") for tag in inside)
        standard = {tag: tag if has_prefix else f"I-{tag}" for tag in inside}
        schemes = ["io"]
    else:
        standard = {tag: _standard_tag(tag) for tag in inside if _is_tag(tag, prefixes[best])}
        schemes = [scheme] if scheme else schemes
    standard |= {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    for sentence, row in enumerate(tags):
        for word, tag in enumerate(row):
            if tag not in standard:
                raise InputError(
                    f"{where(sentence, word)}: tag {tag!r}; expected O, or B, I, E or S (or the "
                    "prefixes of BILOU, BMES or BMEWO), a dash and a type, such as B-PER; or only "
                    "types without a prefix (the tag scheme io)"
                )
    rows = [[standard[tag] for tag in row] for row in tags]
    counts = {name: sum(_count_violations(row, name) for row in rows) for name in schemes}
    scheme = min(schemes, key=counts.get)
    return [to_iob2(row) for row in rows], scheme, counts[scheme]


def _count_violations(tags: Sequence[str], scheme: str) -> int:
    """Returns the number of tags that differ from those of their entities in a scheme.

    `tags` have the prefixes of BIOES. Next to -, all tags are allowed.
    """
    if scheme == "io":
        return 0
    padded = [OUTSIDE, *tags, OUTSIDE]
    return sum(
        tag != tags[index] and UNKNOWN not in padded[index : index + 3]
        for index, tag in enumerate(tags_of(entities(tags), len(tags), scheme))
    )


# --- the labels of a model ---


def label_tags(labels: Sequence[str]) -> list[str]:
    """Converts the labels of a model to tags with the prefixes of BIOES.

    If the labels with a prefix, such as B-PER, are all tags of one scheme, they are converted from
    this scheme. If no label has a prefix, the same holds for all labels. Another label that is not
    a tag of BIOES is an entity type: PER becomes I-PER, and adjacent words with this label are one
    entity. As in the token-classification pipeline of transformers, this holds for each label on
    its own (B-PER and LOC may occur in one model), and only O is outside, even if no label is O. In
    such a model, B, I, E and S without a type are types, too.
    """
    tags = [label for label in labels if re.match(r"[BIESLUMW]-.", label)] or labels
    if any(all(_is_tag(tag, letters) for tag in tags) for letters in SCHEMES.values()):
        labels = [_standard_tag(label) if label in tags else label for label in labels]
    has_types = not all(map(_is_tag, labels))
    return [
        f"I-{label}" if not _is_tag(label) or (has_types and label in [*PREFIXES]) else label
        for label in labels
    ]


def entity_types(labels: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of a model's labels."""
    return sorted({split_tag(tag)[1] for tag in label_tags(labels) if is_inside(tag)})


def iob2_labels(types: Iterable[str]) -> list[str]:
    """Lists the IOB2 tags of entity types: O, then B and I of each type."""
    return [OUTSIDE, *(join_tag(prefix, kind) for kind in types for prefix in "BI")]


def label_names(checkpoint: Checkpoint, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the labels of a tagger, in the order of the logits.

    `names` are entity types or IOB2 tags, or a name for each logit of the checkpoint's head. If
    None, the labels are the checkpoint's, or () without a head. As in transformers, a tagger
    without label names has LABEL_0, LABEL_1, and so on.
    """
    path = checkpoint.path
    labels, is_named = head_labels(checkpoint, names, _tags_of_types)
    if labels and not (is_named or checkpoint.architecture == "BertForTokenClassification"):
        raise InputError(
            f"{path}: has no label names; expected a tagger, or entity types such as "
            'labels=["PER", "LOC"]'
        )
    if labels and not is_named:
        logging.warning(
            "%s: has no label names; each of %s is an entity type. Set id2label in config.json or "
            'labels=["O", "PER", ...], in the order of the logits',
            path,
            ", ".join(labels)[:200],
        )
    return tuple(labels)


def _tags_of_types(names: list[str]) -> list[str]:
    """Converts entity types to IOB2 tags; returns names that are tags unchanged."""
    where = f"labels={names!r:.200}"
    if OUTSIDE not in names:
        if any(split_tag(name)[0] in ("B", "I") for name in names):
            raise InputError(f"{where}: expected entity types such as PER, or tags with O")
        return iob2_labels(names)
    tags = iob2_labels(dict.fromkeys(split_tag(name)[1] for name in names if name != OUTSIDE))
    if sorted(tags) != sorted(names):
        raise InputError(
            f"{where}: expected IOB2 tags, O and both B and I for each type: {', '.join(tags)}"
        )
    return names


def tag_ids(tags: Iterable[Sequence[str]], labels: Sequence[str]) -> np.ndarray:
    """Converts the IOB2 tags of sentences with N words in total to indices of `labels`, int32 [N].

    `tags` has a list of tags for each sentence. The labels have any scheme: the index is that of S
    or E at the end of an entity, if the type has such a label, and that of I if it has no B. The
    index of the tag -, an unknown label, is -1.
    """
    ids = {UNKNOWN: -1} | {tag: index for index, tag in enumerate(label_tags(labels))}
    indices = []
    for row in tags:
        for tag, with_end in zip(row, tags_of(entities(row), len(row), "bioes"), strict=True):
            names = [tag]
            if is_inside(tag):
                names = [with_end, tag, join_tag("I", split_tag(tag)[1])]
            name = next((name for name in names if name in ids), None)
            if name is None:
                raise InputError(
                    f"the tag {tag!r} is not one of the model's labels {', '.join(labels)}; "
                    "expected O, and labels of each type for all words of an entity"
                )
            indices.append(ids[name])
    return np.array(indices, np.int32)


# --- scores ---


def entity_scores(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]], types: Iterable[str] = ()
) -> dict[str, float]:
    """Scores the predicted tags of sentences against their gold tags strictly, as conlleval does.

    An entity is correct if its first word, its last word and its type are all correct.

    Args:
        sentences: the gold tags and the predicted tags of each sentence, with prefixes of BIOES.
        types: entity types to report even if they do not occur.

    Returns:
        "precision", "recall" and "f1" of all entities, the same for each type ("f1_PER"), and
        "accuracy", the share of words with the correct tag. All scores are between 0 and 1. A score
        that would be a division by 0 is 0.
    """
    correct, predicted, expected = Counter(), Counter(), Counter()
    words = hits = 0
    for gold_tags, predicted_tags in sentences:
        # Predictions for words whose label is unknown are ignored.
        predicted_tags = [
            OUTSIDE if gold == UNKNOWN else tag
            for gold, tag in zip(gold_tags, predicted_tags, strict=True)
        ]
        gold, answered = set(entities(gold_tags)), set(entities(predicted_tags))
        expected.update(kind for kind, *_ in gold)
        predicted.update(kind for kind, *_ in answered)
        correct.update(kind for kind, *_ in gold & answered)
        words += len(gold_tags) - gold_tags.count(UNKNOWN)
        hits += sum(map(str.__eq__, gold_tags, predicted_tags))
    scores = _precision_recall_f1(correct.total(), predicted.total(), expected.total())
    for kind in sorted({*expected, *predicted, *types}):
        of_type = _precision_recall_f1(correct[kind], predicted[kind], expected[kind])
        scores |= {f"{name}_{kind}": value for name, value in of_type.items()}
    return scores | {"accuracy": hits / words if words else 0.0}


def _precision_recall_f1(correct: int, predicted: int, expected: int) -> dict[str, float]:
    precision = correct / predicted if predicted else 0.0
    recall = correct / expected if expected else 0.0
    both = precision + recall
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / both if both else 0.0,
    }
