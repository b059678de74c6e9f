"""Random examples whose pieces tell their label, and a tiny model to start from."""

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.encoder import BertEncoder
from keras_bert.tasks.fine_tuning.examples import Examples

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(45))]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)


@pytest.fixture(scope="session")
def make_examples():
    """A function: (count, seed, longest) -> examples of random length."""

    def make(count, seed=0, longest=40):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(3, longest + 1, count)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ids = rng.integers(5, len(VOCAB), starts[-1]).astype(np.int32)
        ids[starts[:-1]] = 2
        ids[starts[1:] - 1] = 3
        # The piece after [CLS] tells the label, by whether it is odd.
        labels = (ids[starts[:-1] + 1] % 2).astype(np.int32)
        segments = np.zeros_like(ids)
        return Examples(ids, segments, starts, {"labels": labels}, {"tags": ids % 3 - 1})

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A model directory of a fresh encoder."""
    path = tmp_path_factory.mktemp("start") / "model"
    keras.utils.set_random_seed(1)
    save_model_directory(path, BertEncoder(CONFIG), CONFIG, VOCAB, do_lower_case=True)
    return path
