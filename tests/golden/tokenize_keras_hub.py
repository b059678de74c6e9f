"""Texts -> token ids of KerasHub, for the tests of written presets.

    .peers/bin/python tests/golden/tokenize_keras_hub.py TEXTS.json OUT.json

TEXTS.json is a list of pairs: a preset directory and a list of strings. OUT.json gets, for each
pair, an object with the ids of the two implementations of KerasHub: `python` from a call of the
tokenizer, `tensorflow` from its graph, as in a tf.data pipeline. KerasHub also saves each preset
again, to PRESET.saved.
"""

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import tensorflow as tf
from keras_hub import models


def tokenize(preset: str, texts: list[str]) -> dict[str, list[list[int]]]:
    """Returns the ids of texts in both implementations of KerasHub's tokenizer."""
    tokenizer = models.BertTokenizer.from_preset(preset)
    graph = tf.function(tokenizer, input_signature=[tf.TensorSpec([None], tf.string)])
    return {
        "python": [[int(index) for index in row] for row in tokenizer(texts)],
        "tensorflow": graph(tf.constant(texts)).to_list(),
    }


def save_again(preset: str) -> None:
    """Saves the encoder and the tokenizer of a preset to PRESET.saved, unless that exists."""
    target = f"{preset}.saved"
    if not Path(target).exists():
        models.BertBackbone.from_preset(preset).save_to_preset(target)
        models.BertTokenizer.from_preset(preset).save_to_preset(target)


def main(texts_file: str, out_file: str) -> None:
    """Tokenizes the texts of each preset, and saves the presets again."""
    pairs = json.loads(Path(texts_file).read_text(encoding="utf-8"))
    ids = [tokenize(preset, texts) for preset, texts in pairs]
    Path(out_file).write_text(json.dumps(ids))
    for preset, _ in pairs:
        save_again(preset)


if __name__ == "__main__":
    main(*sys.argv[1:])
