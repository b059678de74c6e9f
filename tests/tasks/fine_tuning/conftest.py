"""Fixtures: random examples whose tokens determine their label, and a tiny starting model."""

import numpy as np
import pytest

from keras_bert.tasks.classification.processor import ClassifierSettings
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.fine_tuning import run_fine_tuning
from keras_bert.tasks.prepared import Prepared, PreparedSet
from keras_bert.text.tokenizer import BertTokenizer

TOKENS = [f"w{index}" for index in range(45)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TOKENS]


def random_examples(count, seed=0, longest=40):
    """Makes examples of random length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, count)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(5, 50, starts[-1]).astype(np.int32)
    ids[starts[:-1]] = 2
    ids[starts[1:] - 1] = 3
    # The label is whether the token after [CLS] is odd.
    labels = (ids[starts[:-1] + 1] % 2).astype(np.int32)
    segments = np.zeros_like(ids)
    return Examples(ids, segments, starts, {"labels": labels}, {"tags": ids % 3 - 1})


class LabelTask:
    """The arguments of `run_fine_tuning` for predicting labels, or without `labels` numbers.

    `score` is a function of the outputs for `held_out`, and `write` one of the path of the files.
    """

    def __init__(
        self,
        objective,
        train,
        held_out=None,
        labels=("even", "odd"),
        max_seq_length=64,
        problem_type="",
        score=None,
        write=None,
        data=None,
    ):
        problem_type = problem_type or ("single_label" if labels else "regression")
        settings = ClassifierSettings(tuple(labels), problem_type, max_seq_length)
        self.task = TextClassifier(None, BertTokenizer(VOCAB), settings)
        self.task.score_outputs = lambda evaluated, outputs: score(outputs)
        self.task.write_predictions = lambda path, *_: write(path)
        self.objective, self.train, self.score, self.write = objective, train, score, write
        self.task.problem_counts = lambda sets: {}
        self.held_out = PreparedSet(Prepared(held_out, []), items=data or [])

    def run(self, run, start):
        train = None if self.train is None else PreparedSet(Prepared(self.train, []))
        dev = {"": self.held_out} if self.score else {}
        test = {"predictions": self.held_out} if self.write else {}
        return run_fine_tuning(run, start, self.task, self.objective, train, dev, test, "accuracy")


@pytest.fixture(scope="session")
def make_examples():
    """Returns a function that makes examples of random length from (count, seed, longest)."""
    return random_examples


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint, tmp_path_factory):
    """Returns the model directory of a newly initialized encoder with that vocabulary."""
    return make_checkpoint(tmp_path_factory.mktemp("start") / "model", TOKENS)
