"""A small tagging task that can be learnt in seconds, and a random model to start from."""

import random

import pytest

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##x", *"abcdefghijklmnop"]
TAGS = {"a": "B-PER", "b": "I-PER", "c": "B-LOC"}


def text_of(count, seed):
    """Sentences in which "a" and "b" make a person, "c" is a place, and the rest is outside."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        for _ in range(rng.randint(1, 4)):
            for word in rng.choice(["d", "e", "ex", "a b", "a", "c", "f"]).split():
                lines.append(f"{word}\t{TAGS.get(word[0], 'O')}\n")
        lines.append("\t\n")  # as WNUT separates sentences
    return "".join(lines)


@pytest.fixture(scope="session")
def ner_files(tmp_path_factory):
    """A folder with train.conll, dev.conll, test.conll and the checkpoint bert/."""
    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.encoder import BertEncoder

    folder = tmp_path_factory.mktemp("ner")
    for seed, (name, count) in enumerate({"train": 120, "dev": 30, "test": 30}.items()):
        (folder / f"{name}.conll").write_text(text_of(count, seed))
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    save_model_directory(folder / "bert", BertEncoder(config), config, VOCAB)
    return folder
