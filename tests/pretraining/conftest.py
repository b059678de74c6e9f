"""Fixtures: datasets of every kind, made by the data tool from synthetic documents."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

# 40 words; a third of them sometimes have a second token.
WORDS = [a + b for a in "bcdfgklm" for b in "aeiou"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##n", "##r", "##s"]


@pytest.fixture(scope="session")
def write_dataset():
    """Returns a function that writes records and a manifest with settings of the data tool."""
    from data_tools.settings import Settings
    from data_tools.shards import write_shard_of

    def write(folder: Path, documents: int = 60, **settings) -> Path:
        settings = {
            "max_seq_length": 32,
            "max_predictions_per_seq": 6,
            "dupe_factor": 1,
            "num_shards": 2,
            **settings,
        }
        dataset_settings = Settings(**settings)
        folder.mkdir(parents=True)
        vocab = "".join(f"{token}\n" for token in VOCAB)
        (folder / "vocab.txt").write_text(vocab)
        rng = np.random.default_rng(0)
        shards = []
        for index in range(dataset_settings.num_shards):
            corpus = [_document(rng) for _ in range(documents // dataset_settings.num_shards)]
            path = folder / f"records-{index:05d}-of-{dataset_settings.num_shards:05d}.tfrecord"
            note = write_shard_of(
                corpus, index, str(folder / "vocab.txt"), dataset_settings, str(path)
            )
            shards.append({name: note[name] for name in ("file", "rows", "bytes", "sha256")})
        manifest = {
            "format": "keras_bert.pretraining",
            "version": 2,
            "settings": dataset_settings.to_dict(),
            "vocab": {"file": "vocab.txt", "sha256": hashlib.sha256(vocab.encode()).hexdigest()},
            "shards": shards,
            "inputs": [],
            "counts": dict.fromkeys(("documents", "sentences", "examples", "rows"), 9),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return write


def edit_manifest(folder: Path, change) -> Path:
    """Applies a function to the manifest of records; returns their folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _document(rng: np.random.Generator) -> list[bytes]:
    """Returns two to four sentences of two to six words."""
    return [
        " ".join(
            rng.choice(WORDS) + rng.choice(["", "", "n", "r", "s"])
            for _ in range(rng.integers(2, 7))
        ).encode()
        for _ in range(rng.integers(2, 5))
    ]
