"""Running a model over examples: Examples in; its outputs in their order out."""

from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.fine_tuning.batches import MODEL_INPUTS, evaluation_batches
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.training.backend import make_predict
from keras_bert.training.cluster import all_sum, share_of
from keras_bert.training.objective import AfterBatch
from keras_bert.training.progress import progress

Predict = Callable[[Examples], dict[str, np.ndarray]]


def make_predict_examples(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    batch_size: int,
    pad_token_id: int,
    max_seq_length: int,
    *,
    jit_compile: bool = True,
) -> Callable[..., dict[str, np.ndarray]]:
    """Builds the function that runs a model over examples.

    Args:
        strategy: the strategy that the model was made under.
        model: one of the fine-tuned shapes of keras_bert.models.
        batch_size: examples a batch, over all devices.
        pad_token_id: the id of [PAD].
        max_seq_length: no example may be longer.
        jit_compile: compile with XLA.

    Returns:
        `predict(examples, after_batch=None)`: {output: float32 [n, ...]} in the order of the
        examples, or, of a model with `per_token`, {output: float32 [T, ...]} aligned with
        `examples.input_ids`; with what to call after each device's part of a batch. It raises
        InputError, on all workers, if an output is not finite.
    """
    run = make_predict(strategy, model, MODEL_INPUTS, jit_compile=jit_compile)
    together = all_sum(strategy)

    def predict(examples: Examples, after_batch: AfterBatch | None = None) -> dict[str, np.ndarray]:
        results: dict[str, np.ndarray] = {}
        count = len(examples.input_ids) if model.per_token else len(examples)
        worker, workers = share = share_of(strategy)
        batches = evaluation_batches(examples, batch_size, pad_token_id, max_seq_length, share)
        with progress("predicting", len(examples), "examples", silent=worker > 0) as advance:
            for batch, outputs in run(batches):
                index = batch["example_index"]
                real = index >= 0
                kept, places = real, index[real]
                if model.per_token:
                    # Rows become flat pieces; each goes where it lies among all pieces.
                    kept = real[:, np.newaxis] & (batch["input_mask"] == 1)
                    places = examples.places(places)
                for name, values in outputs.items():
                    if name not in results:
                        results[name] = np.zeros([count, *values.shape[kept.ndim :]], values.dtype)
                    results[name][places] = values[kept]
                advance(int(real.sum()) * workers)
                if after_batch:
                    after_batch()
        # Every value comes from one worker; the others have 0 in its place.
        results = {name: together(values) for name, values in results.items()}
        _check_finite(results, examples, model.per_token)
        return results

    return predict


def _check_finite(results: Mapping[str, np.ndarray], examples: Examples, per_token: bool) -> None:
    """Checks what all workers have together, so that all of them end alike."""
    for name, values in results.items():
        finite = np.isfinite(values)
        if finite.all():
            continue
        broken = np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))
        if per_token:
            broken = np.unique(np.searchsorted(examples.starts, broken, side="right"))
        raise InputError(
            f"the model's {name} are not finite for {len(broken)} of {len(examples)} examples; no "
            "result is saved"
        )
