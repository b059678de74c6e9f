"""Texts -> sentence-transformers' own vectors, for the test of exported embeddings.

    .peers/bin/python tests/golden/embed_sentence_transformers.py TEXTS.json OUT.npz MODEL_DIR ...

TEXTS.json is a list of strings; OUT.npz gets float32 [B, H] twice for each directory: `NAME`, by
the directory NAME as it is, its length, pooling and normalization; and `NAME/cls`, the same with
the pooling `cls`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling


def main(texts_file: str, out_file: str, *model_dirs: str) -> None:
    """Embeds the texts by both poolings."""
    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)
    vectors = {}
    for path in map(Path, model_dirs):
        model = SentenceTransformer(str(path), device="cpu")
        vectors[path.name] = model.encode(texts)
        transformer, _, *rest = model
        pooling = Pooling(transformer.get_embedding_dimension(), "cls")
        model = SentenceTransformer(modules=[transformer, pooling, *rest], device="cpu")
        vectors[f"{path.name}/cls"] = model.encode(texts)
    np.savez(out_file, **vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
