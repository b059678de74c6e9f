"""A tiny model, as a model directory that runs start from."""

import pytest

WORDS = ["good", "bad", "film", "book", "it", "is", "a", "##s", ".", "very"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of an encoder of two layers that knows ten words."""
    import keras

    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.encoder import BertEncoder

    config = BertConfig.from_dict(
        {
            "vocab_size": len(VOCAB),
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 32,
            "initializer_range": 0.2,  # So that few steps are enough.
        }
    )
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_model_directory(folder, BertEncoder(config), config, VOCAB)
    return folder


@pytest.fixture(scope="session")
def write_reviews():
    """A function: writes n rows of a text that says good or bad, and that as its label."""
    import numpy as np

    def write(path, n, seed=0, header="text\tlabel", row="{text}\t{label}"):
        rng = np.random.default_rng(seed)
        lines = [header]
        for _ in range(n):
            label = rng.choice(["bad", "good"])
            extra = " ".join(rng.choice(["film", "book", "very", "it is a"], rng.integers(1, 5)))
            lines.append(row.format(text=f"{extra} {label} .", label=label))
        path.write_text("\n".join(lines) + "\n")
        return path

    return write
