"""Defines the training objective of a tagger, and computes strict entity scores as conlleval does.

The objective is softmax cross-entropy over the labeled tokens. An entity is correct if its first
word, its last word and its type are all correct.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from keras import ops

from keras_bert.tasks.ner.tag_schemes import OUTSIDE, UNKNOWN, entities
from keras_bert.training.objective import Batch, OutputObjective, Outputs, soft_label_losses

# --- training objective ---


class TaggingObjective(OutputObjective):
    """The objective for batches with "tags" [B, S], which are -1 for unlabeled tokens."""

    accuracy = "tag_accuracy"

    def label_losses(self, outputs: Outputs, batch: Batch) -> tuple[Any, Any]:
        """Returns the losses and hits of the tokens, [B, S]; unlabeled ones have the weight 0."""
        logits, tags = outputs["logits"], ops.maximum(batch["tags"], 0)
        losses = ops.sparse_categorical_crossentropy(tags, logits, from_logits=True)
        return losses, ops.argmax(logits, axis=-1) == tags

    def soft_losses(self, teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        """Returns the losses of the soft targets, [B, S]."""
        return soft_label_losses(teacher["logits"], outputs["logits"], temperature)

    def item_weights(self, batch: Batch) -> Any:
        """Returns the weights of the tokens, [B, S]: 1 for labeled tokens, and otherwise 0."""
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]


# --- scores ---

# The gold tags and the predicted tags of a sentence.
TagPair = tuple[Sequence[str], Sequence[str]]


def entity_scores(sentences: Iterable[TagPair], types: Iterable[str] = ()) -> dict[str, float]:
    """Scores predicted tags against gold tags, both with the prefixes of BIOES.

    `types` are entity types to report even if they do not occur.

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
