"""Texts -> sentence-transformers' own vectors, for the test of served embeddings.

    .peers/bin/python tests/golden/embed_sentence_transformers.py MODEL_DIR TEXTS.json OUT.npz

TEXTS.json is a list of strings; OUT.npz gets `cls` and `mean`, float32 [B, H], plain and divided by
their lengths (`cls_normalized`, `mean_normalized`). Texts are cut at 128 pieces.
"""

import json
import sys

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer


def main(model_dir: str, texts_file: str, out_file: str) -> None:
    """Embeds the texts by both poolings."""
    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)
    vectors = {}
    for pooling in ("cls", "mean"):
        transformer = Transformer(model_dir, max_seq_length=128)
        pooler = Pooling(transformer.get_embedding_dimension(), pooling)
        model = SentenceTransformer(modules=[transformer, pooler], device="cpu")
        vectors[pooling] = model.encode(texts)
        vectors[f"{pooling}_normalized"] = model.encode(texts, normalize_embeddings=True)
    np.savez(out_file, **vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
