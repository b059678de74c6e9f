"""Uses a network as Keras models are used, on the backend of KERAS_BACKEND.

    KERAS_BACKEND=torch python tests/models/network_on_backend.py FOLDER

Writes files into FOLDER.
"""

import sys
from pathlib import Path

import keras
import numpy as np

from keras_bert.config import BertConfig
from keras_bert.models import BertClassifier

CONFIG = BertConfig(30, 16, 1, 2, 24, max_position_embeddings=12, initializer_range=0.3)
LOSS = {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}


def make_inputs() -> dict[str, np.ndarray]:
    """Returns 8 rows of 10 tokens."""
    random = np.random.default_rng(0)
    return {
        "input_ids": random.integers(1, 30, (8, 10), np.int32),
        "input_mask": np.ones((8, 10), np.int32),
        "segment_ids": np.zeros((8, 10), np.int32),
    }


def logits_of(model: keras.Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the logits as an array."""
    return keras.ops.convert_to_numpy(model(inputs)["logits"])


def fit(model: keras.Model, inputs: dict[str, np.ndarray]) -> list[float]:
    """Trains to predict whether the first token's id is even; returns the losses."""
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=LOSS)
    labels = {"logits": inputs["input_ids"][:, 0] % 2}
    return model.fit(inputs, labels, epochs=15, batch_size=4, verbose=0).history["loss"]


def main(folder: Path) -> None:
    """Trains, trains with LoRA, saves and quantizes."""
    keras.utils.set_random_seed(0)
    inputs = make_inputs()
    model = BertClassifier(CONFIG, 2)
    losses = fit(model, inputs)
    assert losses[-1] < 0.7 * losses[0], losses
    trained = logits_of(model, inputs)
    model.enable_lora(2)
    np.testing.assert_allclose(logits_of(model, inputs), trained, atol=1e-6)
    fit(model, inputs)
    adapted = logits_of(model, inputs)
    assert np.abs(adapted - trained).max() > 1e-3
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras", compile=False)
    np.testing.assert_allclose(logits_of(loaded, inputs), adapted, atol=1e-5)
    loaded.quantize("int8")
    quantized = logits_of(loaded, inputs)
    assert np.abs(quantized - adapted).max() < 0.1 * np.abs(adapted).max()
    outputs = loaded.encoder.layer_outputs(inputs)
    probabilities = keras.ops.convert_to_numpy(outputs["attention_probabilities"][0])
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
