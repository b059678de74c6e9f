"""Runs batches through our models on another backend, and saves the outputs.

    KERAS_BACKEND=jax python tests/run_on_backend.py MODEL_DIR BATCH.npz RESULTS.npz ...

Reads model directories, each with a pre-training batch, packed or not. Writes `plain/*` and
`dropout/*`, the outputs of the pre-trainer and the encoder without and with dropout, and on JAX
also `jit/*`, the pre-trainer's outputs from a jitted `stateless_call`. For packed batches it writes
`loss` and `gradient/*` instead of the last two. TensorFlow is blocked, as if it were not installed.
"""

import sys

if __name__ == "__main__":
    sys.modules["tensorflow"] = None  # Any import of TensorFlow now raises ImportError.

import keras
import numpy as np
from keras import ops

from keras_bert.checkpoints.hugging_face import open_model_directory
from keras_bert.models import BertPretrainer

LABELS = {"masked_lm": ("masked_lm_ids", 1e-5), "next_sentence": ("next_sentence_labels", 0.0)}


INPUTS = (
    *("input_ids", "input_mask", "segment_ids", "masked_lm_positions"),
    *("position_ids", "example_ids", "next_sentence_positions"),
)


def outputs(model: BertPretrainer, inputs: dict, training: bool) -> dict[str, np.ndarray]:
    """Returns all outputs of the encoder and both heads for a batch."""
    inputs = {key: ops.convert_to_tensor(value) for key, value in inputs.items()}
    results = {**model.encoder(inputs, training=training), **model(inputs, training=training)}
    return {key: ops.convert_to_numpy(value) for key, value in results.items()}


def jitted_outputs(model: BertPretrainer, inputs: dict) -> dict[str, np.ndarray]:
    """Returns the outputs of both heads, with the model as a pure, compiled JAX function."""
    import jax

    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    return jax.jit(lambda x: model.stateless_call(trained, others, x)[0])(inputs)


def loss_and_gradients(model: BertPretrainer, batch: dict) -> dict[str, np.ndarray]:
    """Returns the loss of a packed batch on JAX and its gradient for every variable, by path."""
    import jax

    others = [variable.value for variable in model.non_trainable_variables]

    def loss_of(trained: list, batch: dict) -> jax.Array:
        inputs = {name: batch[name] for name in INPUTS if name in batch}
        outputs, _ = model.stateless_call(trained, others, inputs)
        loss = 0.0
        for name, (labels, epsilon) in LABELS.items():
            weights = batch[f"{name}_weights"]
            nll = ops.sparse_categorical_crossentropy(
                batch[labels], outputs[f"{name}_logits"], from_logits=True
            )
            loss += ops.sum(weights * nll) / (ops.sum(weights) + epsilon)
        return loss

    trained = [variable.value for variable in model.trainable_variables]
    loss, values = jax.jit(jax.value_and_grad(loss_of))(trained, batch)
    paths = [variable.path for variable in model.trainable_variables]
    gradients = {f"gradient/{path}": value for path, value in zip(paths, values, strict=True)}
    return {"loss": loss, **gradients}


def run(model_dir: str, batch_file: str, results_file: str) -> None:
    """Opens a model, runs a batch, and saves the outputs."""
    directory = open_model_directory(model_dir)
    model = BertPretrainer(directory.config)
    directory.load_into(model)
    batch = dict(np.load(batch_file))
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    plain = outputs(model, inputs, training=False)
    if "example_ids" in batch:
        plain = {f"plain/{key}": value for key, value in plain.items()}
        np.savez(results_file, **plain, **loss_and_gradients(model, batch))
        return
    seeds = np.arange(len(inputs["input_ids"]), dtype=np.int32)
    dropout = outputs(model, {**inputs, "dropout_seed": seeds}, training=True)
    jitted = jitted_outputs(model, inputs) if keras.backend.backend() == "jax" else {}
    np.savez(
        results_file,
        **{f"jit/{key}": value for key, value in jitted.items()},
        **{f"plain/{key}": value for key, value in plain.items()},
        **{f"dropout/{key}": value for key, value in dropout.items()},
    )


if __name__ == "__main__":
    for index in range(1, len(sys.argv), 3):
        run(*sys.argv[index : index + 3])
