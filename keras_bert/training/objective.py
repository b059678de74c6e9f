"""Defines what a run is made of on all backends: settings, losses, state, metrics."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models.encoder import select_inputs
from keras_bert.models.memory import check_batch_fits, gigabytes, kept_activations
from keras_bert.training.optimizers import AdamWeightDecay, LossScale
from keras_bert.training.settings import TrainingSettings

if TYPE_CHECKING:
    import tensorflow as tf

Batch = Mapping[str, Any]  # tensors of the backend by feature name
AfterBatch = Callable[[], None]  # called after each evaluation batch; may raise to interrupt it


# --- settings ---


@dataclass(frozen=True)
class TrainingRun:
    """The settings, devices and directory of a training run.

    The files in `output_dir` are described in docs/reference/outputs.md. `record` contains the
    settings to save in run.json, which must be the same when the run is resumed. `is_part` is
    whether this is one phase of a larger run.
    """

    training: TrainingSettings
    strategy: "tf.distribute.Strategy"
    output_dir: Path
    record: Mapping[str, object] = field(default_factory=dict)
    is_part: bool = False


def check_train_batch_fits(
    settings: TrainingSettings,
    workers: int,
    config: BertConfig,
    length: int,
    rows_per_example: int = 1,
) -> int:
    """Checks that a worker's micro-batch fits in memory; returns its number of rows."""
    rows = settings.train_batch_size * rows_per_example
    rows = rows // settings.gradient_accumulation_steps // workers
    check_batch_fits(config, rows, length, f"--train_batch_size={settings.train_batch_size}")
    return rows


@contextlib.contextmanager
def checked_memory(
    settings: TrainingSettings,
    workers: int,
    config: BertConfig,
    length: int,
    rows_per_example: int = 1,
) -> Iterator[None]:
    """Checks that a worker's micro-batch fits in memory; explains memory errors of the block."""
    rows = check_train_batch_fits(settings, workers, config, length, rows_per_example)
    try:
        yield
    except Exception as error:
        is_tensorflow = type(error).__name__ == "ResourceExhaustedError"
        if not is_tensorflow and "RESOURCE_EXHAUSTED" not in str(error):  # The latter is JAX's.
            raise
        recomputed = settings.gradient_checkpointing
        needed = kept_activations(config, rows, length, recomputed)
        raise InputError(
            f"--train_batch_size={settings.train_batch_size}: the memory is exhausted "
            f"({str(error).splitlines()[0][:200]}); the activations of {rows} rows of {length} "
            f"tokens need at least {gigabytes(needed)}; expected a smaller batch, or more "
            "--gradient_accumulation_steps"
            + ("" if recomputed else ", or --gradient_checkpointing")
        ) from error


def check_batch_sizes(
    strategy: "tf.distribute.Strategy", settings: TrainingSettings, eval_batch_size: int
) -> None:
    """Checks that batches can be divided equally among devices and micro-batches."""
    devices = strategy.num_replicas_in_sync
    parts = devices * settings.gradient_accumulation_steps
    if settings.train_batch_size % parts:
        raise InputError(
            f"--train_batch_size={settings.train_batch_size} is not divisible by {devices} devices "
            f"x {settings.gradient_accumulation_steps} micro-batches"
        )
    if eval_batch_size % devices:
        raise InputError(
            f"--eval_batch_size={eval_batch_size} is not divisible by {devices} devices"
        )


# --- objective ---


class Objective:
    """The metrics of a task, each a numerator over a denominator, both summed over examples.

    Unlike a mean of means, the quotient of sums is exact for any split of the examples into
    batches, micro-batches and devices. Subclasses override `weights` and `sums`. Objectives with
    equal attributes are equal, so that the next `fit` need not compile its step again.

    Attributes:
        metrics: the names of the metrics (losses, accuracies), in the reported order.
        losses: {metric: epsilon} of the metrics whose sum is the loss; epsilon is added to the
            denominator.
        rows_per_example: the number of consecutive rows of a batch that form an example.
    """

    metrics: Sequence[str] = ("loss",)
    losses: Mapping[str, float] = {"loss": 0.0}
    rows_per_example: int = 1

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def weights(self, batch: Batch) -> dict[str, Any]:
        """Returns {metric: denominator}, float32 scalars that depend only on the data.

        Examples that only pad a batch have weight 0.
        """
        raise NotImplementedError

    def sums(self, model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        """Returns {metric: numerator}, float32 scalars."""
        raise NotImplementedError

    def loss(self, sums: Mapping[str, Any], totals: Mapping[str, Any]) -> Any:
        """Computes the loss of a batch from {metric: numerator} and {metric: denominator}.

        A loss of weight 0, such as that of a batch without any labeled token, is 0.
        """
        return sum(
            sums[name] / ops.maximum(totals[name] + epsilon, 1e-12)
            for name, epsilon in self.losses.items()
        )

    def divide(self, sums: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Returns {"loss": value} followed by {metric: value}; a metric of weight 0 is 0.

        `sums` [F] and `weights` [F] are the total numerators and denominators over the same
        batches, in the order of the F `metrics`.
        """
        epsilons = np.array([self.losses.get(name, 0.0) for name in self.metrics])
        # Weights are whole numbers, so the minimum of 1e-12 only prevents a division by zero.
        values = np.asarray(sums, np.float64) / np.maximum(weights + epsilons, 1e-12)
        metrics = dict(zip(self.metrics, values.tolist(), strict=True))
        return {"loss": sum(metrics[name] for name in self.losses)} | metrics


class RowObjective(Objective):
    """An objective whose loss depends on a vector per row of a whole batch, not on single rows."""

    def vectors(self, model: keras.Model, batch: Batch, training: bool) -> Any:
        """Returns the vectors of the rows, float32 [rows, width]."""
        raise NotImplementedError

    def sums_of_vectors(self, vectors: Any, batch: Batch) -> dict[str, Any]:
        """Returns {metric: numerator}, float32 scalars."""
        raise NotImplementedError

    def sums(self, model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        """Returns {metric: numerator}, float32 scalars."""
        return self.sums_of_vectors(self.vectors(model, batch, training), batch)


# --- objective of a task with labels, or with the outputs of a teacher ---
# The loss of soft targets is the Kullback-Leibler divergence of the two distributions at a
# temperature T, multiplied by T² (Hinton et al. 2015, section 2). Outputs of the teacher that do
# not exist, such as those at padding, are NO_OUTPUT. Shapes: B examples, S tokens, C classes.

Outputs = Mapping[str, Any]
TEACHER = "teacher_"  # Prefix of the labels that are outputs of the teacher.
NO_OUTPUT = -10_000.0  # Small enough that exp(NO_OUTPUT / T) is 0, and still a float16.


def soft_label_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence of two distributions over classes: logits [..., C] -> [...]."""
    expected = ops.log_softmax(ops.cast(teacher, "float32") / temperature)
    actual = ops.log_softmax(logits / temperature)
    return temperature**2 * ops.sum(ops.exp(expected) * (expected - actual), axis=-1)


class OutputObjective(Objective):
    """An objective whose losses depend only on the outputs of the model, also with a teacher.

    With a teacher, batches contain its outputs, and the losses are "label_loss" and "soft_loss".
    They include their weights, so that the loss is their sum. `distillation` has the
    `distillation_weight` and the `temperature`; None without a teacher. Subclasses override the
    methods without an implementation; `accuracy` is the name of the share of hits, if it is a
    metric.
    """

    accuracy: str = ""

    def __init__(self, distillation: Any = None):
        self.distillation = distillation
        hits = (self.accuracy,) if self.accuracy else ()
        self.metrics = ("loss", *hits)
        if distillation is not None:
            weight = distillation.distillation_weight
            self._shares = {"label_loss": 1.0 - weight, "soft_loss": weight}
            self.losses = dict.fromkeys(self._shares, 0.0)
            self.metrics = (*self.losses, *hits)

    def label_losses(self, outputs: Outputs, batch: Batch) -> tuple[Any, Any]:
        """Returns the losses against the labels, [B] or [B, S], and whether each one is a hit."""
        raise NotImplementedError

    def soft_losses(self, teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        """Returns the losses of the soft targets, [B] or [B, S]."""
        raise NotImplementedError

    def item_weights(self, batch: Batch) -> Any:
        """Returns the weights of the hits and of `soft_losses`, of the same shape."""
        return batch["example_weights"]

    def loss_weights(self, batch: Batch) -> Any:
        """Returns the weights of the losses against the labels."""
        return self.item_weights(batch)

    def weights(self, batch: Batch) -> dict[str, Any]:
        """Returns {metric: denominator}."""
        loss, items = ops.sum(self.loss_weights(batch)), ops.sum(self.item_weights(batch))
        hits = {self.accuracy: items} if self.accuracy else {}
        if self.distillation is None:
            return {"loss": loss} | hits
        return {"label_loss": loss, "soft_loss": items} | hits

    def sums(self, model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        """Returns {metric: numerator}."""
        outputs = model(select_inputs(batch), training=training)
        losses, is_hit = self.label_losses(outputs, batch)
        loss, weights = ops.sum(self.loss_weights(batch) * losses), self.item_weights(batch)
        hits = {}
        if self.accuracy:
            hits = {self.accuracy: ops.sum(weights * ops.cast(is_hit, "float32"))}
        if self.distillation is None:
            return {"loss": loss} | hits
        teacher = {
            name.removeprefix(TEACHER): values
            for name, values in batch.items()
            if name.startswith(TEACHER)
        }
        soft = self.soft_losses(teacher, outputs, self.distillation.temperature)
        totals = {"label_loss": loss, "soft_loss": ops.sum(weights * soft)}
        return {name: self._shares[name] * totals[name] for name in self.losses} | hits


# --- state ---


class TrainState(NamedTuple):
    """A model and the objects that train it, all created in the strategy's scope.

    The optimizer is built on the model's trainable variables, and `objective` has the losses and
    metrics. There is a loss scale only for float16.
    """

    model: keras.Model
    optimizer: AdamWeightDecay
    objective: Objective
    loss_scale: LossScale | None = None


# --- metrics ---


class StepMetrics(NamedTuple):
    """The metrics of n training steps, with one row per step, float32.

    Attributes:
        sums: [n, F], numerators of the objective's F metrics over the global batch.
        weights: [n, F], the denominators of these metrics.
        tokens: [n], the number of tokens in the batch, without padding.
        examples: [n], the number of rows in the batch that are (parts of) examples, not padding.
        flops: [n], the floating-point operations of these rows (`training_flops`).
        loss_scale: [n], the factor by which the loss was multiplied; 1 without loss scaling.
        gradient_norm: [n], the global norm of the gradient before clipping.
        learning_rate: [n], the learning rate of the step.
    """

    sums: Any
    weights: Any
    tokens: Any
    examples: Any
    flops: Any
    loss_scale: Any
    gradient_norm: Any
    learning_rate: Any

    def numpy(self) -> "StepMetrics":
        """Waits for the steps to finish and returns their metrics as NumPy arrays."""
        return StepMetrics(*map(np.asarray, self))

    def losses(self, objective: Objective) -> np.ndarray:
        """Returns the loss of each step, [n]."""
        rows = zip(self.sums, self.weights, strict=True)
        return np.array([objective.divide(sums, weights)["loss"] for sums, weights in rows])


def training_flops(model: keras.Model, batch: Batch, length: Any) -> Any:
    """Counts the floating-point operations of a training step for each row of a batch.

    They are three times those of the forward pass's matrix products, and 0 for models that are not
    BERT. `length` is the number of tokens in a row, with padding; a number, or a float tensor.
    """
    if not hasattr(model, "config"):
        return 0.0
    positions = batch.get("masked_lm_positions")
    if getattr(model.config, "is_decoder", False):  # The head scores the tokens at all positions.
        predictions = length
    else:
        predictions = 0 if positions is None else ops.cast(ops.shape(positions)[1], "float32")
    return 3.0 * model.config.flops_per_row(length, predictions)
