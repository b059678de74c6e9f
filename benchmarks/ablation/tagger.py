"""Trains a tagger with two bidirectional LSTM layers on features, as in section 5.3 of the paper.

    python -m ablation.tagger --features_dir=DIR --features=last --train_file=... --output_file=...

DIR has train.npz, eval.npz and test.npz of extract_features.py, one line per sentence. The input of
a word is the feature of its first token. A word without a token, or behind the last token of a
truncated sentence, has zeros as its feature and gets the tag O.

W words of a sentence, K layers, H hidden size, D size of a feature, C labels, b sentences and w
words of a batch.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags

flags.DEFINE_string("features_dir", None, "folder of train.npz, eval.npz and test.npz")
flags.DEFINE_string("init_checkpoint", None, "the model of the features, for its vocabulary")
flags.DEFINE_string("features", "last", "how a feature is made from the layers (plan.FEATURES)")
for _split in ("train", "eval", "test"):
    flags.DEFINE_string(f"{_split}_file", None, "column file")
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
    if features == "sum_last_four":
        return values.sum(axis=1)
    if features == "concat_last_four":
        return values.reshape(len(values), -1)
    return values[:, {"last": 0, "second_to_last": 1}[features]]


def first_tokens(counts: np.ndarray, num_tokens: int) -> np.ndarray:
    """Returns the position of each word's first token in its sentence, [W]; 0 if there is none.

    `counts`, [W], are the numbers of tokens of the words. `num_tokens` is the number of tokens of
    the sentence with [CLS] and [SEP], after truncation.
    """
    positions = 1 + np.cumsum(counts) - counts
    return np.where((counts > 0) & (positions < num_tokens - 1), positions, 0)


def read_split(split: str) -> list[Tagged]:
    """Reads the sentences of a column file with their features."""
    from keras_bert.checkpoints.open import open_checkpoint
    from keras_bert.tasks.ner.data import read_conll
    from keras_bert.text.tokenizer import BertTokenizer

    checkpoint = open_checkpoint(FLAGS.init_checkpoint)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    sentences = read_conll(FLAGS[f"{split}_file"].value)
    words = [word for sentence in sentences for word in sentence.words]
    counts = tokenizer.tokenize(words).row_lengths().numpy()
    stored = np.load(Path(FLAGS.features_dir) / f"{split}.npz")
    values, starts = combine(stored["values"], FLAGS.features), stored["starts"]
    ends = np.cumsum([len(sentence.words) for sentence in sentences])
    tagged = []
    for index, sentence in enumerate(sentences):
        of_words = counts[ends[index] - len(sentence.words) : ends[index]]
        positions = first_tokens(of_words, starts[index + 1] - starts[index])
        vectors = values[starts[index] + positions] * (positions > 0)[:, np.newaxis]
        tagged.append(Tagged(vectors, sentence.tags))
    return tagged


def batches(data: Sequence[Tagged], labels: Sequence[str], order: np.ndarray) -> Iterator[tuple]:
    """Yields (features [b, w, D], labels [b, w], weights [b, w]) of batches of similar length.

    `order` is the order of the sentences. Batches are formed within groups of 16 batches.
    """
    group = 16 * BATCH
    for start in range(0, len(order), group):
        rows = sorted(order[start : start + group], key=lambda index: len(data[index].tags))
        for first in range(0, len(rows), BATCH):
            yield padded([data[index] for index in rows[first : first + BATCH]], labels)


def padded(sentences: Sequence[Tagged], labels: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Returns (features, labels, weights) of a batch; words without a feature have no weight."""
    width = -(-max(len(each.tags) for each in sentences) // WIDTH) * WIDTH
    features = np.zeros([BATCH, width, sentences[0].features.shape[1]], np.float32)
    targets = np.zeros([BATCH, width], np.int32)
    for row, sentence in enumerate(sentences):
        count = len(sentence.tags)
        features[row, :count] = sentence.features
        # Tags that do not occur in training cannot be predicted.
        targets[row, :count] = [labels.index(tag) if tag in labels else 0 for tag in sentence.tags]
    return features, targets, np.any(features, axis=-1).astype(np.float32)


def train(data: Sequence[Tagged], labels: Sequence[str], epochs: float, units: int, seed: int):
    """Trains a tagger, features [b, w, D] -> logits [b, w, C]; the rate falls linearly to 0."""
    import keras

    keras.utils.set_random_seed(seed)
    outputs = inputs = keras.Input([None, data[0].features.shape[1]])
    for _ in range(2):
        outputs = keras.layers.Dropout(DROPOUT)(outputs)
        lstm = keras.layers.LSTM(units, return_sequences=True)
        outputs = keras.layers.Bidirectional(lstm)(outputs)
    model = keras.Model(inputs, keras.layers.Dense(len(labels))(outputs))
    steps = max(1, round(epochs * -(-len(data) // BATCH)))
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
    tags: list[list[str]] = [[] for _ in data]
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        features, _, weights = padded([data[index] for index in rows], labels)
        best = np.asarray(model.predict_on_batch(features)).argmax(axis=-1)
        for row, index in enumerate(rows):
            count = len(data[index].tags)
            pairs = zip(best[row, :count], weights[row, :count], strict=True)
            tags[index] = [labels[label] if weight else "O" for label, weight in pairs]
    return tags


def main(_) -> None:
    """Trains a tagger and writes its scores on the development and the test set."""
    from keras_bert.tasks.ner.tag_schemes import entity_scores

    data = read_split("train")
    labels = ["O", *sorted({tag for each in data for tag in each.tags} - {"O"})]
    model = train(data, labels, FLAGS.epochs, FLAGS.units, FLAGS.random_seed)
    scores = {}
    for name, split in (("last", "eval"), ("test", "test")):
        held_out = read_split(split)
        predicted = predict(model, held_out, labels)
        pairs = [(each.tags, tags) for each, tags in zip(held_out, predicted, strict=True)]
        scores[name] = entity_scores(pairs)
    Path(FLAGS.output_file).write_text(json.dumps(scores))


if __name__ == "__main__":
    app.run(main)
