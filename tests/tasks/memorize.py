"""Trains every task that `fit` can train to memorize 16 examples, or what a teacher predicts.

    KERAS_BACKEND=jax python -m tests.tasks.memorize MODEL_DIR CASE...

The tests import the cases; as a program, the module runs those named on the command line.
"""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller
from keras_bert.tasks.ner.task import EntityTagger
from keras_bert.tasks.question_answering.task import QuestionAnswerer

WORDS = ["good", "bad", "film", "book", "it", "is", "very", "a"]
TEXTS = [" ".join(words) for words in (WORDS[:4], WORDS[4:], WORDS[::2], WORDS[1::2])] * 4
VALUES = np.array([-0.9, 0.4, -0.2, 0.8] * 4, np.float32)
PARTNERS = [f"it is {text}" for text in (*TEXTS[2:], *TEXTS[:2])]
LABELS = {
    "single_label": list("abca" * 4),
    "multi_label": [["a", "c"], ["b"], ["a", "b", "c"], []] * 4,
    "regression": VALUES,
}
_TAGS = [["B-X", "I-X", "O", "O"], ["O", "B-X", "B-X", "O"], ["O"] * 4, ["O", "O", "B-X", "I-X"]]
# Each answer is the first or the last word.
_ANSWERS = [
    {"text": text.split()[-(i % 2)], "start": (i % 2) * text.rindex(" ") + i % 2}
    for i, text in enumerate(TEXTS)
]
OPTIONS = {
    "batch_size": 16,
    "epochs": 60,
    "learning_rate": 2e-2,
    "weight_decay": 0.0,
    "seed": 0,
    "verbose": 0,
}


class Case(NamedTuple):
    """A task object that is created from the path of a model, and the arguments of its `fit`."""

    create: Callable[[Any], Any]
    data: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    loss: float = 0.05  # The highest loss at the end.


def _classifier(problem_type: str) -> Callable[[Any], TextClassifier]:
    labels = () if problem_type == "regression" else ("a", "b", "c")
    return lambda path: TextClassifier.from_pretrained(path, labels, problem_type=problem_type)


def _embedding(name: str, sizes: tuple[int, ...] = (), steps: int = 1, loss: float = 0.05) -> Case:
    data = ((TEXTS, PARTNERS), None if name == "mnrl" else VALUES)
    options = {"loss": EmbeddingLoss(name, sizes=sizes), "gradient_accumulation_steps": steps}
    return Case(TextEmbedder.from_pretrained, data, options, loss)


# The cases that can have a teacher, and the others.
TAUGHT = {
    **{name: Case(_classifier(name), (TEXTS, labels)) for name, labels in LABELS.items()},
    "tags": Case(
        lambda path: EntityTagger.from_pretrained(path, ["O", "B-X", "I-X"]),
        ([text.split() for text in TEXTS], _TAGS * 4),
    ),
    "spans": Case(
        lambda path: QuestionAnswerer.from_pretrained(path, max_seq_length=16, max_query_length=4),
        (["very"] * 16, TEXTS, _ANSWERS),
    ),
}
CASES = {
    **TAUGHT,
    "mnrl": _embedding("mnrl", (32, 8), 4),
    "cosine": _embedding("cosine", loss=0.01),
    # Each word determines the others.
    "masks": Case(MaskFiller.from_pretrained, ([TEXTS[0], TEXTS[-1]] * 8,), loss=0.1),
}


def check_case(path: Any, name: str) -> None:
    """Trains on the outputs of a teacher whose head has other values, if it can have one."""
    case, is_taught = CASES[name], name in TAUGHT
    student, options = case.create(path), case.options
    if is_taught:
        keras.utils.set_random_seed(1)
        teacher = case.create(path)
        teacher.untrained = ()
        options = {"teacher": teacher, "distillation_weight": 1.0}
    loss = student.fit(*case.data, **OPTIONS, **options).history["loss"]
    print(name, loss[0], loss[-1])
    assert loss[-1] < case.loss < loss[0], (name, loss)


if __name__ == "__main__":
    for case_name in sys.argv[2:]:
        check_case(sys.argv[1], case_name)
