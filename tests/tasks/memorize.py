"""Trains every task that `fit` can train to memorize 16 examples, and checks what it has learned.

    KERAS_BACKEND=jax python -m tests.tasks.memorize MODEL_DIR CASE...

The tests import the cases; as a program, the module runs those named on the command line.
"""

import sys
from collections.abc import Callable
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
CLASSES = np.array([0, 1, 2, 0] * 4)
SETS = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]] * 4)
VALUES = np.array([-0.9, 0.4, -0.2, 0.8] * 4, np.float32)
SPANS = np.array([[0, 1], [1, 3], [3, 3], [2, 2]] * 4)
_TAGS = [["B-X", "I-X", "O", "O"], ["O", "B-X", "B-X", "O"], ["O"] * 4, ["O", "O", "B-X", "I-X"]]
TAGS = _TAGS * 4
PARTNERS = [f"it is {text}" for text in (*TEXTS[2:], *TEXTS[:2])]
OPTIONS = {
    "batch_size": 16,
    "epochs": 60,
    "learning_rate": 2e-2,
    "weight_decay": 0.0,
    "seed": 0,
    "verbose": 0,
}


class Case(NamedTuple):
    """A task with labels to memorize.

    Attributes:
        create: creates the task object from the path of a model.
        data: the arguments of `fit`.
        outputs: returns the predictions of a task object, probabilities or scores.
        expected: the predictions that the labels require.
    """

    create: Callable[[Any], Any]
    data: tuple[Any, ...]
    outputs: Callable[[Any], np.ndarray]
    expected: np.ndarray


def _model_outputs(task_object: Any, start: list[str] | None = None) -> dict[str, np.ndarray]:
    """Runs the model on the texts, after `start` as the first segment, or as the first segment."""
    vocab = task_object.tokenizer.vocab
    rows = [
        ["[CLS]", *(start or []), *["[SEP]"] * bool(start), *text.split(), "[SEP]"]
        for text in TEXTS
    ]
    ids = np.array([[vocab.index(token) for token in row] for row in rows], np.int32)
    segments = np.zeros_like(ids)
    if start:
        segments[:, len(start) + 2 :] = 1
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    outputs = task_object.model(batch)
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}


def _probabilities(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def _classifier(problem_type: str) -> Callable[[Any], TextClassifier]:
    labels = () if problem_type == "regression" else ("a", "b", "c")
    return lambda path: TextClassifier.from_pretrained(path, labels, problem_type=problem_type)


def _spans(answerer: QuestionAnswerer) -> np.ndarray:
    outputs = _model_outputs(answerer, ["very"])
    return _probabilities(np.stack([outputs[f"{end}_logits"] for end in ("start", "end")], 1))


def _answers() -> list[dict[str, Any]]:
    answers = []
    for text, (first, last) in zip(TEXTS, SPANS, strict=True):
        words = text.split()
        start = len(" ".join([*words[:first], ""]))
        answers.append({"text": " ".join(words[first : last + 1]), "start": start})
    return answers


CASES = {
    "single_label": Case(
        _classifier("single_label"),
        (TEXTS, ["abc"[label] for label in CLASSES]),
        lambda it: _probabilities(_model_outputs(it)["logits"]),
        np.eye(3)[CLASSES],
    ),
    "multi_label": Case(
        _classifier("multi_label"),
        (TEXTS, [[name for name, on in zip("abc", row, strict=True) if on] for row in SETS]),
        lambda it: 1 / (1 + np.exp(-_model_outputs(it)["logits"])),
        SETS,
    ),
    "regression": Case(
        _classifier("regression"), (TEXTS, VALUES), lambda it: it.predict(TEXTS)["score"], VALUES
    ),
    "tags": Case(
        lambda path: EntityTagger.from_pretrained(path, ["O", "B-X", "I-X"]),
        ([text.split() for text in TEXTS], TAGS),
        lambda it: _probabilities(_model_outputs(it)["logits"][:, 1:-1]),
        np.eye(3)[[[("O", "B-X", "I-X").index(tag) for tag in row] for row in TAGS]],
    ),
    "spans": Case(
        lambda path: QuestionAnswerer.from_pretrained(path, max_seq_length=16, max_query_length=4),
        (["very"] * 16, TEXTS, _answers()),
        _spans,
        np.eye(8)[SPANS + 3],
    ),
}
# (case, share of the teacher's outputs in the loss)
SHARES = [("single_label", 0), *((name, 0.5) for name in CASES)]


def check_case(path: Any, name: str, weight: float) -> None:
    """Trains on labels and, with the share `weight`, on the outputs of a teacher.

    At the minimum of the loss, the predictions are the mixture of both.
    """
    case = CASES[name]
    student, expected, options = case.create(path), case.expected, {}
    if weight:
        keras.utils.set_random_seed(1)
        teacher = case.create(path)  # Its new head has values of its own.
        teacher.untrained = ()
        taught = case.outputs(teacher)
        expected = (1 - weight) * expected + weight * taught
        assert np.abs(taught - case.expected).max() > 0.5
        options = {"teacher": teacher, "distillation_weight": weight}
    student.fit(*case.data, **OPTIONS, **options)
    error = np.abs(case.outputs(student) - expected).max()
    print(name, weight, error)
    assert error < 0.1, (name, weight, error)


EMBEDDING_LOSSES = [
    ("mnrl", (), 1),
    ("mnrl", (32, 8), 4),
    ("cosent", (32, 8), 1),
    ("cosine", (), 4),
]


def check_embedding(path: Any, loss: str, sizes: tuple[int, ...], steps: int) -> None:
    """Trains an embedder on pairs, or on pairs with scores, until it orders all of them."""
    embedder = TextEmbedder.from_pretrained(path)
    data = ((TEXTS, PARTNERS), None if loss == "mnrl" else VALUES)
    given = EmbeddingLoss(loss, sizes=sizes)
    history = embedder.fit(*data, loss=given, gradient_accumulation_steps=steps, **OPTIONS).history
    metrics = embedder.evaluate(*data)
    print(loss, sizes, steps, history["loss"][-1], metrics)
    for suffix in ("", *(f"_{size}" for size in sizes[1:])):
        if loss == "mnrl":
            assert metrics[f"recall_at_1{suffix}"] == 1
        else:
            assert metrics[f"spearman{suffix}"] > 0.97
    assert history["loss"][-1] < {"mnrl": 0.05, "cosent": 1.0, "cosine": 0.01}[loss]


def check_masks(path: Any) -> None:
    """Trains on two texts of which each word determines the others."""
    texts = [TEXTS[0], TEXTS[-1]]
    filler = MaskFiller.from_pretrained(path)
    filler.fit(texts * 8, **OPTIONS)
    metrics = filler.evaluate(texts * 8)
    print("masks", metrics)
    assert metrics["masked_lm_accuracy"] == 1
    assert metrics["loss"] < 0.05
    masked = [text.replace(text.split()[1], "[MASK]") for text in texts]
    tokens = [row[0, 0] for row in filler.predict(masked)["tokens"]]
    assert tokens == [text.split()[1] for text in texts]


if __name__ == "__main__":
    for case_name in sys.argv[2:]:
        if case_name == "masks":
            check_masks(sys.argv[1])
        elif case_name in CASES:
            check_case(sys.argv[1], case_name, 0.5)
        else:
            check_embedding(sys.argv[1], case_name, (32, 8), 1)
