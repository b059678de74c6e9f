"""Random examples whose pieces tell their label, and a tiny model to start from."""

import numpy as np
import pytest

from keras_bert.tasks.fine_tuning.examples import Examples

PIECES = [f"w{index}" for index in range(45)]


def random_examples(count, seed=0, longest=40):
    """Makes examples of random length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, count)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(5, 50, starts[-1]).astype(np.int32)
    ids[starts[:-1]] = 2
    ids[starts[1:] - 1] = 3
    # The piece after [CLS] tells the label, by whether it is odd.
    labels = (ids[starts[:-1] + 1] % 2).astype(np.int32)
    segments = np.zeros_like(ids)
    return Examples(ids, segments, starts, {"labels": labels}, {"tags": ids % 3 - 1})


@pytest.fixture(scope="session")
def make_examples():
    """A function: (count, seed, longest) -> examples of random length."""
    return random_examples


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint, tmp_path_factory):
    """A model directory of a fresh encoder that knows those pieces."""
    return make_checkpoint(tmp_path_factory.mktemp("start") / "model", PIECES)
