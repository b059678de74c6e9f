"""Makes random tiny KerasHub presets and stores KerasHub's outputs for them.

    .peers/bin/python tests/golden/make_checkpoint_keras_hub.py             makes the golden files
    .peers/bin/python tests/golden/make_checkpoint_keras_hub.py DIRECTORY TEXTS.json

Without arguments, it writes the directories keras_hub_classifier/ and keras_hub_masked_lm/ next to
this script, in the format in which KerasHub saves tasks, each with outputs.npz: a batch and its
outputs. With arguments, KerasHub opens a Hugging Face directory of keras_bert. The outputs of the
encoder, and the token ids of a list of texts, are written to DIRECTORY.npz.
"""

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
from keras_hub import models

HERE = Path(__file__).resolve().parent
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] all work and no play makes jack a dull boy caf ##e"
VOCAB = PIECES.split()


def backbone() -> models.BertBackbone:
    """Returns a random encoder."""
    return models.BertBackbone(
        vocabulary_size=len(VOCAB),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        max_sequence_length=16,
    )


def perturb(model) -> None:
    """Moves every weight off 0 and 1, so that a swapped or lost one shows."""
    random = np.random.default_rng(5)
    for variable in model.weights:
        if str(variable.dtype).startswith("float"):
            variable.assign(random.normal(0.1, 0.4, variable.shape).astype(np.float32))


def batch() -> dict[str, np.ndarray]:
    """Returns three sequences with padding and two segments, in our names."""
    random = np.random.default_rng(6)
    mask = (np.arange(10) < np.array([[10], [7], [4]])).astype(np.int32)
    return {
        "input_ids": random.integers(0, len(VOCAB), mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(10) >= 5).astype(np.int32) * mask,
        "masked_lm_positions": np.array([[1, 3, 8], [2, 4, 0], [1, 0, 0]], np.int32),
    }


def outputs(model) -> dict[str, np.ndarray]:
    """Runs a backbone, or a task and its backbone."""
    given = batch()
    inputs = {
        "token_ids": given["input_ids"],
        "padding_mask": given["input_mask"],
        "segment_ids": given["segment_ids"],
    }
    encoder = model if isinstance(model, models.BertBackbone) else model.backbone
    results = given | {key: value.numpy(force=True) for key, value in encoder(inputs).items()}
    if isinstance(model, models.BertTextClassifier):
        results["logits"] = model(inputs).numpy(force=True)
    if isinstance(model, models.BertMaskedLM):
        scores = model({**inputs, "mask_positions": given["masked_lm_positions"]})
        results["masked_lm_logits"] = scores.numpy(force=True)
    return results


def make() -> None:
    """Saves both presets and their outputs."""
    tokenizer = models.BertTokenizer(vocabulary=VOCAB, lowercase=True)
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    classifier = models.BertTextClassifier(backbone(), 3, preprocessor=preprocessor)
    preprocessor = models.BertMaskedLMPreprocessor(tokenizer, sequence_length=16)
    masked_lm = models.BertMaskedLM(backbone(), preprocessor=preprocessor)
    for model, name in ((classifier, "classifier"), (masked_lm, "masked_lm")):
        perturb(model)
        folder = HERE / f"keras_hub_{name}"
        model.save_to_preset(str(folder))
        np.savez_compressed(folder / "outputs.npz", **outputs(model))


def open_directory(folder: str, texts_file: str) -> None:
    """Opens the encoder and the tokenizer of a directory, and saves their outputs."""
    encoder = models.BertBackbone.from_preset(folder)
    tokenizer = models.BertTokenizer.from_preset(folder, strip_accents=True)
    texts = json.loads(Path(texts_file).read_text(encoding="utf-8"))
    ids = [[int(index) for index in row] for row in tokenizer(texts)]
    np.savez_compressed(f"{folder}.npz", ids=json.dumps(ids), **outputs(encoder))


if __name__ == "__main__":
    if sys.argv[1:]:
        open_directory(*sys.argv[1:])
    else:
        make()
