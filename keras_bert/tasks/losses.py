"""Computes the losses and metrics of the tasks, for the programs and for `keras.Model.fit`.

The functions for `fit` take (targets, outputs) and are registered with Keras, so that a `.keras`
file saved by ModelCheckpoint can be loaded after `import keras_bert`. This module imports only
Keras. Shapes: B examples, S tokens, C classes or tags, P predictions, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

_register = keras.saving.register_keras_serializable("keras_bert")


@_register
def single_label_loss(labels: Any, logits: Any) -> Any:
    """Computes softmax cross-entropy: labels int [B], logits [B, C] -> [B]."""
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


@_register
def multi_label_loss(labels: Any, logits: Any, positive_weights: Any = 1.0) -> Any:
    """Computes sigmoid cross-entropy, averaged over the classes: labels and logits [B, C] -> [B].

    `labels` is 1 for each label of an example, and 0 otherwise. `positive_weights`, a number or
    [C], is the weight of the labels that are 1.
    """
    # -positive · labels · log(sigmoid(x)) - (1 - labels) · log(1 - sigmoid(x)), without overflow.
    weights = 1.0 + (positive_weights - 1.0) * labels
    softplus = ops.log1p(ops.exp(-ops.abs(logits))) + ops.relu(-logits)
    return ops.mean((1.0 - labels) * logits + weights * softplus, axis=-1)


@_register
def regression_loss(targets: Any, logits: Any) -> Any:
    """Computes the squared error: targets [B] or [B, 1], logits [B, 1] -> [B]."""
    # `keras.Model.fit` expands the targets to the shape of the logits.
    return ops.square(logits[:, 0] - ops.reshape(targets, [-1]))


CLASSIFICATION_LOSSES = {
    "single_label": single_label_loss,
    "multi_label": multi_label_loss,
    "regression": regression_loss,
}


def position_loss(position: Any, mask: Any, logits: Any) -> tuple[Any, Any]:
    """Returns the cross-entropy of the correct position, and whether it has the highest logit.

    position int [B], mask bool [B, S] (false at padding), logits [B, S] -> float [B], bool [B].
    """
    logits = ops.where(mask, logits, -1e9)
    loss = ops.sparse_categorical_crossentropy(position, logits, from_logits=True)
    return loss, ops.argmax(logits, axis=-1) == position


@_register
def span_loss(targets: Any, logits: Any) -> Any:
    """Computes half of the cross-entropy of the start or the end of a span: logits [B, S] -> [B].

    `targets` [B, S] is 1 at the correct position, 0 at the others, and -1 at padding.
    """
    return 0.5 * position_loss(ops.argmax(targets, axis=-1), targets >= 0, logits)[0]


def token_losses(tags: Any, logits: Any) -> Any:
    """Computes the softmax cross-entropy of each token.

    tags int [B, S], logits [B, S, C] -> [B, S]. Tags of -1 count as 0, so the caller must ignore
    the values of these tokens.
    """
    return ops.sparse_categorical_crossentropy(ops.maximum(tags, 0), logits, from_logits=True)


def token_hits(tags: Any, logits: Any) -> Any:
    """Returns 1.0 for each token whose tag has the highest logit, and 0.0 for the others.

    tags int [B, S], logits [B, S, C] -> [B, S]. Tags of -1 count as 0, as in `token_losses`.
    """
    return ops.cast(ops.argmax(logits, axis=-1) == ops.maximum(tags, 0), "float32")


@_register
def tag_loss(tags: Any, logits: Any) -> Any:
    """Computes the mean cross-entropy of all tagged tokens, a scalar.

    tags [B, S], -1 for tokens without a tag; logits [B, S, C].
    """
    return _mean(tags, token_losses(ops.cast(tags, "int32"), logits))


@_register
def tag_accuracy(tags: Any, logits: Any) -> Any:
    """Computes the accuracy over all tagged tokens, a scalar.

    tags [B, S], -1 for tokens without a tag; logits [B, S, C].
    """
    return _mean(tags, token_hits(ops.cast(tags, "int32"), logits))


@_register
def masked_lm_loss(ids: Any, logits: Any) -> Any:
    """Computes the mean cross-entropy of all masked tokens, a scalar.

    ids [B, P] are the original tokens, -1 for unused predictions; logits [B, P, V].
    """
    weights = ops.cast(ids >= 0, "float32")
    losses = ops.sparse_categorical_crossentropy(ops.maximum(ids, 0), logits, from_logits=True)
    return ops.sum(weights * losses) / (ops.sum(weights) + 1e-5)


def _mean(tags: Any, values: Any) -> Any:
    weights = ops.cast(tags >= 0, values.dtype)
    return ops.sum(weights * values) / ops.maximum(ops.sum(weights), 1)
