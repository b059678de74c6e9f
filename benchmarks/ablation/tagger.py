"""Trains a tagger with two bidirectional LSTM layers on features, as in section 5.3 of the paper.

    python -m ablation.tagger --features_dir=DIR --features=last --train_file=... --output_file=...

DIR has train.npz, eval.npz and test.npz of extract_features.py, one line per sentence. The input of
a word is the feature of its first token. A word without a token, or behind the last token of a
truncated sentence, has zeros as its feature and gets the tag O.

W words of a sentence, K layers, H hidden size, D size of a feature, C labels.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags

flags.DEFINE_string("features_dir", None, "folder of train.npz, eval.npz and test.npz")
flags.DEFINE_string("init_checkpoint", None, "the model of the features, for its vocabulary")
flags.DEFINE_enum(
    "features",
    "last",
    ["last", "second_to_last", "sum_last_four", "concat_last_four"],
    "how a feature is made from the layers",
)
flags.DEFINE_string("train_file", None, "column file to train on")
flags.DEFINE_string("eval_file", None, "column file to evaluate on")
flags.DEFINE_string("test_file", None, "column file to evaluate on, too")
flags.DEFINE_string("output_file", None, "JSON file for the scores")
flags.DEFINE_float("epochs", 15, "passes over the training sentences")
flags.DEFINE_integer("units", 128, "size of each LSTM in each direction")
flags.DEFINE_integer("random_seed", 0, "seed of weights, order and dropout")
FLAGS = flags.FLAGS

BATCH, LEARNING_RATE, DROPOUT = 32, 1e-3, 0.3
# Sentences of similar length are in one batch, padded to a multiple of this number of words.
WIDTH = 16


class Tagged(NamedTuple):
    """A sentence: the features of its words, float32 [W, D], and their tags, W strings."""

    features: np.ndarray
    tags: Sequence[str]


def combine(values: np.ndarray, features: str) -> np.ndarray:
    """Makes features [n, D] from the hidden states of the last layers, [n, K, H], last first."""
    if features == "last":
        return values[:, 0]
    if features == "second_to_last":
        return values[:, 1]
    if features == "sum_last_four":
        return values.sum(axis=1)
    return values.reshape(len(values), -1)


def first_tokens(counts: np.ndarray, num_tokens: int) -> np.ndarray:
    """Returns the place of each word's first token in its sentence, [W]; 0 if there is none.

    `counts`, [W], are the numbers of tokens of the words. `num_tokens` is the number of tokens of
    the sentence with [CLS] and [SEP], after truncation.
    """
    places = 1 + np.cumsum(counts) - counts
    return np.where((counts > 0) & (places < num_tokens - 1), places, 0)


def read_split(split: str, path: str, features: str) -> list[Tagged]:
    """Reads the sentences of a column file with their features."""
    import tensorflow as tf

    from keras_bert.checkpoints.open_checkpoint import open_checkpoint
    from keras_bert.tasks.ner.data import read_conll
    from keras_bert.text.tokenizer import BertTokenizer

    checkpoint = open_checkpoint(FLAGS.init_checkpoint)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    sentences = read_conll(path)
    words = tf.constant([word for sentence in sentences for word in sentence.words])
    counts = tokenizer.tokenize(words).row_lengths().numpy()
    stored = np.load(Path(FLAGS.features_dir) / f"{split}.npz")
    values, starts = combine(stored["values"], features), stored["starts"]
    if len(starts) != len(sentences) + 1:
        raise ValueError(f"{split}.npz has {len(starts) - 1} lines; expected {len(sentences)}")
    tagged, done = [], 0
    for sentence, start, end in zip(sentences, starts[:-1], starts[1:], strict=True):
        own = counts[done : done + len(sentence.words)]
        done += len(sentence.words)
        places = first_tokens(own, end - start)
        vectors = values[start + places] * (places > 0)[:, np.newaxis]
        tagged.append(Tagged(vectors, sentence.tags))
    return tagged


def batches(data: Sequence[Tagged], labels: Sequence[str], order: np.ndarray) -> Iterator[tuple]:
    """Yields (features [b, w, D], labels [b, w], weights [b, w]) of batches of similar length.

    `order` is the order of the sentences. Batches are formed within groups of 16 batches.
    """
    group = 16 * BATCH
    for place in range(0, len(order), group):
        some = sorted(order[place : place + group], key=lambda index: len(data[index].tags))
        for first in range(0, len(some), BATCH):
            yield _padded([data[index] for index in some[first : first + BATCH]], labels)


def _padded(sentences: Sequence[Tagged], labels: Sequence[str]) -> tuple[np.ndarray, ...]:
    width = -(-max(len(each.tags) for each in sentences) // WIDTH) * WIDTH
    depth = sentences[0].features.shape[1]
    features = np.zeros([BATCH, width, depth], np.float32)
    targets = np.zeros([BATCH, width], np.int32)
    weights = np.zeros([BATCH, width], np.float32)
    for row, sentence in enumerate(sentences):
        count = len(sentence.tags)
        features[row, :count] = sentence.features
        # Tags that do not occur in training cannot be predicted.
        targets[row, :count] = [labels.index(tag) if tag in labels else 0 for tag in sentence.tags]
        weights[row, :count] = np.any(sentence.features, axis=1)
    return features, targets, weights


def make_tagger(depth: int, num_labels: int, units: int):
    """Creates the network: features [b, w, D] -> logits [b, w, C]."""
    import keras

    features = inputs = keras.Input([None, depth])
    for _ in range(2):
        features = keras.layers.Dropout(DROPOUT)(features)
        features = keras.layers.Bidirectional(keras.layers.LSTM(units, return_sequences=True))(
            features
        )
    return keras.Model(inputs, keras.layers.Dense(num_labels)(features))


def train(data: Sequence[Tagged], labels: Sequence[str], epochs: float, units: int, seed: int):
    """Trains a tagger; the learning rate falls linearly to 0."""
    import keras

    keras.utils.set_random_seed(seed)
    model = make_tagger(data[0].features.shape[1], len(labels), units)
    per_epoch = -(-len(data) // BATCH)
    steps = max(1, round(epochs * per_epoch))
    schedule = keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, steps, 0.0)
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random, done = np.random.default_rng(seed), 0
    while done < steps:
        for batch in batches(data, labels, random.permutation(len(data))):
            model.train_on_batch(*batch)
            done += 1
            if done == steps:
                break
    return model


def predict(model, data: Sequence[Tagged], labels: Sequence[str]) -> list[list[str]]:
    """Predicts the tags of sentences."""
    order = sorted(range(len(data)), key=lambda index: len(data[index].tags))
    found: list[list[str]] = [[] for _ in data]
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        features, _, weights = _padded([data[index] for index in some], labels)
        best = np.asarray(model.predict_on_batch(features)).argmax(axis=-1)
        for row, index in enumerate(some):
            for place in range(len(data[index].tags)):
                known = weights[row, place] > 0
                found[index].append(labels[best[row, place]] if known else "O")
    return found


def main(_) -> None:
    """Trains a tagger and writes its scores on the development and the test set."""
    from keras_bert.tasks.ner.metrics import entity_scores

    data = read_split("train", FLAGS.train_file, FLAGS.features)
    labels = ["O", *sorted({tag for each in data for tag in each.tags} - {"O"})]
    model = train(data, labels, FLAGS.epochs, FLAGS.units, FLAGS.random_seed)
    scores = {}
    for name, split, path in (
        ("last", "eval", FLAGS.eval_file),
        ("test", "test", FLAGS.test_file),
    ):
        held_out = read_split(split, path, FLAGS.features)
        predicted = predict(model, held_out, labels)
        pairs = [(each.tags, tags) for each, tags in zip(held_out, predicted, strict=True)]
        scores[name] = entity_scores(pairs)
    Path(FLAGS.output_file).write_text(json.dumps(scores))


if __name__ == "__main__":
    app.run(main)
