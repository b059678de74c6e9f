"""Trains a classifier on the backend of KERAS_BACKEND, saves it and prints its predictions.

KERAS_BACKEND=jax python tests/tasks/classification/classify_on_backend.py MODEL_DIR OUTPUT_DIR
"""

import json
import sys

from keras_bert.tasks.classification.text_classifier import TextClassifier


def main(model_dir: str, output_dir: str) -> None:
    """Trains, evaluates, predicts and saves."""
    texts = [f"{'very ' * (i * 3 % 12)}{('bad', 'good')[i % 2]} film" for i in range(16)]
    labels = [("neg", "pos")[i % 2] for i in range(16)]
    classifier = TextClassifier.from_pretrained(model_dir, labels=["neg", "pos"], max_seq_length=16)
    history = classifier.fit(
        texts,
        labels,
        validation_data=(texts, labels),
        epochs=3,
        batch_size=8,
        learning_rate=3e-3,
        verbose=0,
    )
    classifier.save_pretrained(output_dir)
    answers = classifier.predict(texts, batch_size=5)
    report = {
        "loss": history.history["val_loss"],
        "untrained": classifier.untrained,
        "texts": texts,
        "label": answers["label"].tolist(),
        "logits": answers["logits"].tolist(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
