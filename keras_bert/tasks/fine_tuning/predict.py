"""Runs a model over examples and returns its outputs in the order of the examples."""

from collections.abc import Callable, Iterable, Mapping

import keras
import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.models.memory import check_batch_fits
from keras_bert.tasks.fine_tuning.batches import BatchSettings, evaluation_batches
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.training.backend import make_predict
from keras_bert.training.cluster import all_sum
from keras_bert.training.log import progress
from keras_bert.training.objective import AfterBatch

Predict = Callable[[Examples], dict[str, np.ndarray]]


def make_predict_examples(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    settings: BatchSettings,
    *,
    jit_compile: bool = True,
) -> Callable[..., dict[str, np.ndarray]]:
    """Creates the function that runs a model, which was created under `strategy`, over examples.

    Returns:
        `predict(examples, after_batch=None)`. For n examples of T tokens in total, it returns
        {output: float32 [n, ...]}, or for a `per_token` model {output: float32 [T, ...]}, aligned
        with `examples.input_ids`. It calls `after_batch` after each device's part of a batch. It
        raises InputError if a batch cannot fit in the memory of this machine, and on all workers if
        an output is not finite.
    """
    run = make_predict(strategy, model, jit_compile=jit_compile)
    together = all_sum(strategy)
    worker, workers = settings.share

    def predict(examples: Examples, after_batch: AfterBatch | None = None) -> dict[str, np.ndarray]:
        rows = settings.batch_size // workers
        if len(examples):
            flag = f"--eval_batch_size={settings.batch_size}"
            check_batch_fits(model.config, rows, int(examples.lengths.max()), flag)
        results = Outputs(examples, model.per_token)
        with progress("predicting", len(examples), "examples", silent=worker > 0) as advance:
            for batch, outputs in run(evaluation_batches(examples, settings)):
                advance(results.add(batch, outputs) * workers)
                if after_batch:
                    after_batch()
        # Each value is computed by one worker and is 0 on the others.
        values = {
            name: together(values).astype(values.dtype, copy=False)
            for name, values in results.values.items()
        }
        check_finite(values, examples, model.per_token)
        return values

    return predict


class Outputs:
    """Collects the outputs of batches in the order of n examples of T tokens in total.

    Its attribute `values` is {output: [n, ...]}, or {output: [T, ...]} if `per_token`.
    """

    def __init__(self, examples: Examples, per_token: bool):
        self.values: dict[str, np.ndarray] = {}
        self._examples = examples
        self._per_token = per_token

    def add(self, batch: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> int:
        """Stores the outputs of a batch, and returns its number of examples (no filler rows)."""
        index = batch["example_index"]
        real = index >= 0
        kept, places = real, index[real]
        if self._per_token:
            # Flatten the rows to tokens and store each at its index among all tokens.
            kept = real[:, np.newaxis] & (batch["input_mask"] == 1)
            places = self._examples.places(places)
        count = len(self._examples.input_ids) if self._per_token else len(self._examples)
        for name, values in outputs.items():
            if name not in self.values:
                self.values[name] = np.zeros([count, *values.shape[kept.ndim :]], values.dtype)
            self.values[name][places] = values[kept]
        return int(real.sum())


def check_finite(values: Mapping[str, np.ndarray], examples: Examples, per_token: bool) -> None:
    """Raises InputError if an output is not finite; all workers must pass the same `values`."""
    for name, array in values.items():
        finite = np.isfinite(array)
        if finite.all():
            continue
        non_finite: Iterable[int] = np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))
        if per_token:
            non_finite = np.unique(np.searchsorted(examples.starts, non_finite, side="right"))
        raise InputError(
            f"the model's {name} are not finite for {len(non_finite)} of {len(examples)} examples; "
            "no result is saved"
        )
