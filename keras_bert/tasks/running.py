"""Runs a Keras model over examples on one device, with any Keras backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.batches import BatchBuilder, BatchSettings, evaluation_plan
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Outputs, check_finite
from keras_bert.text.tokenizer import BertTokenizer


class _Graph(NamedTuple):
    """A model as a tf.function, and the variables that it was traced with."""

    variables: Sequence[keras.Variable]
    call: Callable[..., Mapping[str, tf.Tensor]]


class ModelRunner:
    """Runs a model from keras_bert.models over examples."""

    def __init__(self, model: keras.Model, tokenizer: BertTokenizer):
        self._model = model
        self._tokenizer = tokenizer
        self._traced: _Graph | None = None

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
        settings = BatchSettings(
            min(batch_size, max(len(examples), 1)), self._tokenizer.pad_token_id, positions
        )
        builder = BatchBuilder(examples, settings)
        seeds = np.zeros([settings.batch_size], np.int32)
        for index in evaluation_plan(examples.lengths, settings.batch_size):
            yield builder.build(index, seeds)

    def forward(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the model's outputs, {output: array}, for a batch.

        The arrays of the batch that are inputs of the model are int32 [B, S]; others are ignored.
        """
        inputs = {name: batch[name] for name in self._model.required_inputs}
        if keras.config.backend() != "tensorflow":
            return self._model.predict_on_batch(inputs)
        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        return {name: value.numpy() for name, value in self._graph()(tensors).items()}

    def _graph(self) -> Callable[..., Mapping[str, tf.Tensor]]:
        """Returns the model as a tf.function for batches of any shape."""
        variables, traced = self._model.variables, self._traced
        # Trace again if LoRA or quantization has replaced the model's variables.
        if traced is None or [*map(id, traced.variables)] != [*map(id, variables)]:
            names = self._model.required_inputs
            specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}
            call = tf.function(
                lambda given: self._model(given, training=False),
                input_signature=[specs],
                autograph=False,
            )
            self._traced = traced = _Graph(variables, call)
        return traced.call
