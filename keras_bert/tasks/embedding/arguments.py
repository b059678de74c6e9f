"""Checks the arguments of `TextEmbedder.fit` and `evaluate`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.tasks.embedding.data import matryoshka_sizes
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.rows import (
    TextRows,
    check_evaluation_rows,
    check_scores,
    given_rows,
)


def training_arguments(
    texts: Any, scores: Any, loss: EmbeddingLoss | str | None, hidden_size: int
) -> tuple[TextRows, EmbeddingLoss]:
    """Checks the examples and the loss of `TextEmbedder.fit`, and returns both.

    Raises:
        InputError: an argument is invalid.
    """
    rows = given_rows("texts", texts, scores)
    loss = given_loss(loss, rows, hidden_size)
    if rows.scores is not None:
        check_scores(rows)
    return rows, loss


def given_loss(loss: EmbeddingLoss | str | None, rows: TextRows, hidden_size: int) -> EmbeddingLoss:
    """Returns the loss for training on examples, for a model with vectors of a size.

    `loss` may be the name of a loss, or None for the default.

    Raises:
        InputError: the loss is unknown or not for these examples, or a Matryoshka size is invalid.
    """
    if loss is None:
        loss = "mnrl" if rows.scores is None else "cosent"
    if not isinstance(loss, EmbeddingLoss):
        loss = EmbeddingLoss(loss)
    if loss.takes_scores != (rows.scores is not None):
        found, expected = ("no scores", "scores") if loss.takes_scores else ("scores", "no scores")
        raise InputError(f"loss={loss.name!r}: got {found}; expected {expected} for this loss")
    sizes = matryoshka_sizes(f"sizes={loss.sizes!r:.60}", loss.sizes, hidden_size)
    return replace(loss, columns=len(rows.columns), sizes=sizes)


def given_evaluation_rows(name: str, texts: Any, scores: Any) -> TextRows:
    """Checks pairs to evaluate; `name` is the name of the argument `texts` in error messages."""
    rows = given_rows(name, texts, scores)
    if len(rows.columns) != 2:
        raise InputError(f"{name} is a tuple of 3 items; expected a tuple of two lists of strings")
    if rows.scores is not None:
        check_scores(rows)
    check_evaluation_rows(rows)
    return rows


def fit_targets(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the targets of `BatchLoss` for a batch of NumPy arrays."""
    # Numbers within the batch, because float32 represents only integers up to 2**24.
    _, ids = np.unique(batch["text_ids"], return_inverse=True)
    return {"vectors": np.stack([batch["scores"], ids], axis=1).astype(np.float32)}
