"""Texts -> sentence-transformers' own vectors, for the test of exported embeddings.

    .peers/bin/python tests/golden/embed_sentence_transformers.py MODEL_DIR TEXTS.json OUT.npz

TEXTS.json is a list of strings; OUT.npz gets float32 [B, H] twice: `directory`, by the directory as
it is, its length, pooling and normalization; and `cls`, the same with the pooling `cls`.
"""

import json
import sys

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling


def main(model_dir: str, texts_file: str, out_file: str) -> None:
    """Embeds the texts by both poolings."""
    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)
    model = SentenceTransformer(model_dir, device="cpu")
    vectors = {"directory": model.encode(texts)}
    transformer, _, *rest = model
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    model = SentenceTransformer(modules=[transformer, pooling, *rest], device="cpu")
    vectors["cls"] = model.encode(texts)
    np.savez(out_file, **vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
