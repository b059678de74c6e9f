"""Fixtures: a tiny model directory that runs start from, and a writer of reviews."""

import pytest

WORDS = ["good", "bad", "film", "book", "it", "is", "a", "##s", ".", "very"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="session")
def tiny_model(make_checkpoint, tmp_path_factory):
    """Returns the folder of an encoder with a vocabulary of ten words."""
    # Large initial weights, so that few steps are enough.
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return make_checkpoint(folder, WORDS, initializer_range=0.2, max_position_embeddings=32)


@pytest.fixture(scope="session")
def write_reviews():
    """Returns a function that writes n rows of a text with "good" or "bad" and its label."""
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
