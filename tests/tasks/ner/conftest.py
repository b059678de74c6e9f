"""Fixtures: a small tagging task that is learned in seconds, and a random starting model."""

import random

import pytest

TOKENS = ["##x", *"abcdefghijklmnop"]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
CHARACTER_VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(*CHARACTERS, *".,:;-&@#_/'中国"),
    *(f"##{character}" for character in CHARACTERS),
]
TAGS = {"a": "B-PER", "b": "I-PER", "c": "B-LOC"}


def text_of(count, seed):
    """Writes sentences: "a" and "b" form a person, "c" is a place, other words are outside."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        for _ in range(rng.randint(1, 4)):
            for word in rng.choice(["d", "e", "ex", "a b", "a", "c", "f"]).split():
                lines.append(f"{word}\t{TAGS.get(word[0], 'O')}\n")
        lines.append("\t\n")  # as WNUT separates sentences
    return "".join(lines)


@pytest.fixture(scope="session")
def ner_files(make_checkpoint, tmp_path_factory):
    """Returns a folder with train.conll, dev.conll, test.conll and the checkpoint bert/."""
    folder = tmp_path_factory.mktemp("ner")
    for seed, (name, count) in enumerate({"train": 120, "dev": 30, "test": 30}.items()):
        (folder / f"{name}.conll").write_text(text_of(count, seed))
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    make_checkpoint(folder / "bert", TOKENS, max_position_embeddings=16, **no_dropout)
    return folder
