"""Trains a classifier on the backend of KERAS_BACKEND, saves it and prints its predictions.

KERAS_BACKEND=jax python tests/tasks/classification/classify_on_backend.py MODEL_DIR OUTPUT_DIR
"""

import json
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

import keras_bert

# The last batch of an epoch has two texts. There are up to 96 tokens per text.
TEXTS = [f"{'very ' * (i * 29 % 93)}{('bad', 'good')[i % 2]} film" for i in range(26)]
LABELS = [("neg", "pos")[i % 2] for i in range(26)]
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "verbose": 0}


class Compilations(logging.Handler):
    """Counts the programs of the model that JAX compiles."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        if keras.config.backend() == "jax":
            import jax

            jax.config.update("jax_log_compiles", True)
            logging.getLogger("jax._src.dispatch").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a program if its function is not one that JAX defines, such as `jit(add)`."""
        names = ("jit(step)", "jit(with_weights)")
        line = record.getMessage()
        self._count += line.startswith("Finished XLA compilation") and any(n in line for n in names)

    def since_last_call(self) -> int:
        """Returns the number of programs compiled since the last call."""
        count, self._count = self._count, 0
        return count


def failures(classifier: "keras_bert.TextClassifier") -> Iterator[str]:
    """Yields the errors and differences of 80 predictions in four threads."""
    expected = classifier.predict(TEXTS[:1])["logits"]

    def predict(_: int) -> str:
        try:
            logits = classifier.predict(TEXTS[:1])["logits"]
        except Exception as error:  # Each kind is reported.
            return str(error)
        return "" if np.array_equal(logits, expected) else "other logits"

    with ThreadPoolExecutor(4) as threads:
        yield from filter(None, threads.map(predict, range(80)))


def main(model_dir: str, output_dir: str) -> None:
    """Trains, evaluates, predicts and saves."""
    compilations = Compilations()
    classifier = keras_bert.TextClassifier.from_pretrained(model_dir, max_seq_length=96)
    counts = {}
    history = classifier.fit(TEXTS, LABELS, validation_data=(TEXTS, LABELS), **OPTIONS).history
    counts["fit"] = compilations.since_last_call()
    answers = classifier.predict(TEXTS, batch_size=5)
    compilations.since_last_call()
    for count in range(1, 9):
        classifier.predict(TEXTS[:1] * count)
    counts["predict"] = compilations.since_last_call()
    classifier.save_pretrained(output_dir)
    classifier.model.save(f"{output_dir}/model.keras")
    failed = [*failures(classifier)]
    compilations.since_last_call()
    again = classifier.fit(TEXTS, LABELS, validation_data=(TEXTS, LABELS), **OPTIONS).history
    counts["second_fit"] = compilations.since_last_call()
    kernel = classifier.model.classifier.kernel
    before = keras.ops.convert_to_numpy(kernel).copy()
    classifier.fit(TEXTS, LABELS, **{**OPTIONS, "epochs": 1, "learning_rate": 1e-6})
    moved = np.abs(keras.ops.convert_to_numpy(kernel) - before).max()
    report = {
        "moved_at_a_low_rate": float(moved),
        "history": history,
        "second_history": again,
        "compilations": counts,
        "failures": failed,
        "untrained": classifier.untrained,
        "label": answers["label"].tolist(),
        "logits": answers["logits"].tolist(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
