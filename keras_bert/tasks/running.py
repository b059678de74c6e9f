"""Runs a Keras model over examples on one device, with any Keras backend."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.batches import BatchBuilder, BatchSettings, evaluation_plan
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Outputs, check_finite
from keras_bert.text.tokenizer import BertTokenizer


class _Compiled(NamedTuple):
    """A model as a compiled function, and the variables that it was compiled with."""

    variables: Sequence[keras.Variable]
    call: Callable[..., Mapping[str, Any]]


class ModelRunner:
    """Runs a model from keras_bert.models over examples; several threads may use it."""

    def __init__(self, model: keras.Model, tokenizer: BertTokenizer):
        self._model = model
        self._tokenizer = tokenizer
        self._compiled: _Compiled | None = None

    def run(self, examples: Examples, batch_size: int, per_token: bool) -> dict[str, np.ndarray]:
        """Computes {output: values} for the examples, in their order; there may be no examples.

        The values have one row per token, [T, ...], if `per_token`, and otherwise one per example,
        [n, ...].

        Raises:
            InputError: an output is not finite.
        """
        if not len(examples):  # Runs one dummy example to get the output names and shapes.
            ids = np.array([self._tokenizer.cls_token_id, self._tokenizer.sep_token_id], np.int32)
            one = Examples(ids, np.zeros_like(ids), np.array([0, 2]))
            return {name: values[:0] for name, values in self.run(one, 1, per_token).items()}
        results = Outputs(examples, per_token)
        for batch in self.batches(examples, batch_size):
            results.add(batch, self.forward(batch))
        check_finite(results.values, examples, per_token)
        return results.values

    def batches(self, examples: Examples, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields padded batches of examples of similar length, the longest first."""
        positions = self._model.config.max_position_embeddings
        rows = max(len(examples), 1)
        if keras.config.backend() == "jax":  # Compiles a program for each number of rows.
            rows = 1 << (rows - 1).bit_length()
        settings = BatchSettings(min(batch_size, rows), self._tokenizer.pad_token_id, positions)
        builder = BatchBuilder(examples, settings)
        seeds = np.zeros([settings.batch_size], np.int32)
        for index in evaluation_plan(examples.lengths, settings.batch_size):
            yield builder.build(index, seeds)

    def forward(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the model's outputs, {output: array}, for a batch.

        The arrays of the batch that are inputs of the model are int32 [B, S]; others are ignored.
        """
        inputs = {name: batch[name] for name in self._model.required_inputs}
        if keras.config.backend() == "torch":
            return self._model.predict_on_batch(inputs)
        return {name: np.asarray(value) for name, value in self._function()(inputs).items()}

    def _function(self) -> Callable[..., Mapping[str, Any]]:
        """Returns the model as a compiled function; with TensorFlow, for batches of any shape."""
        variables, compiled = self._model.variables, self._compiled
        # Compile again if LoRA or quantization has replaced the model's variables.
        if compiled is None or [*map(id, compiled.variables)] != [*map(id, variables)]:
            call: Callable[..., Mapping[str, Any]] = functools.partial(self._model, training=False)
            if keras.config.backend() == "jax":
                from keras_bert.training.jax_evaluate import pure

                # `predict_on_batch` would delete the weights that other threads are using.
                call = pure(self._model, call, jit_compile=True)
            else:
                names = self._model.required_inputs
                specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}
                call = tf.function(call, input_signature=[specs], autograph=False)
            self._compiled = compiled = _Compiled(variables, call)
        return compiled.call
