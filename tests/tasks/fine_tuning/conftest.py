"""Fixtures: random examples whose tokens determine their label, and a tiny starting model."""

import numpy as np
import pytest

from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.fine_tuning import FineTuningTask
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


class LabelTask(FineTuningTask):
    """Predicts labels, or without `labels` numbers; `changes` are attributes and methods."""

    task_class = TextClassifier

    def __init__(self, objective, train, labels=("even", "odd"), max_seq_length=64, **changes):
        self.objective, self.train, self.labels = objective, train, [*labels] or None
        problem_type = "single_label" if labels else "regression"
        settings = ClassifierSettings(tuple(labels), problem_type, max_seq_length)
        self.processor = ClassificationProcessor(BertTokenizer(VOCAB), settings)
        for name, value in changes.items():
            setattr(self, name, value)
        self.dev, self.test = changes.get("score"), changes.get("write_predictions")


@pytest.fixture(scope="session")
def make_examples():
    """Returns a function that makes examples of random length from (count, seed, longest)."""
    return random_examples


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint, tmp_path_factory):
    """Returns the model directory of a newly initialized encoder with that vocabulary."""
    return make_checkpoint(tmp_path_factory.mktemp("start") / "model", TOKENS)
