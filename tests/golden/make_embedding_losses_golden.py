"""Computes losses of sentence-transformers and their gradients, for the tests of embedding losses.

    .peers/bin/python tests/golden/make_embedding_losses_golden.py tests/golden/embedding_losses.npz

`vectors` is float32 [B, 3, H], `scores` float32 [B]. For each loss, NAME_loss is its value, and
NAME_gradient [B, k, H] its gradient with respect to the first k vectors of each example.
"""

import sys

import numpy as np
import torch
from sentence_transformers.sentence_transformer import losses

SIZES = (8, 4, 2)


class Lookup(torch.nn.Module):
    """A model whose embeddings are its input, as MatryoshkaLoss needs a model to truncate."""

    def forward(self, features: dict) -> dict:
        """Returns the vectors as embeddings."""
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        """Returns the size of the vectors."""
        return SIZES[0]


def main(path: str) -> None:
    """Writes the inputs, losses and gradients."""
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=[6, 3, SIZES[0]]).astype(np.float32)
    scores = np.array([0.9, -0.2, 0.5, 0.5, 0.0, 1.0], np.float32)
    model = Lookup()
    ranking = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    cosent = losses.CoSENTLoss(model, scale=20.0)
    all_losses = {
        "mnrl_pairs": (2, ranking),
        "mnrl_triplets": (3, ranking),
        "cosine": (2, losses.CosineSimilarityLoss(model)),
        "cosent": (2, cosent),
        "matryoshka_mnrl": (3, losses.MatryoshkaLoss(model, ranking, SIZES, [1 / 3] * 3)),
        "matryoshka_cosent": (2, losses.MatryoshkaLoss(model, cosent, SIZES, [1 / 3] * 3)),
    }
    arrays = {"vectors": vectors, "scores": scores}
    for name, (columns, loss) in all_losses.items():
        given = torch.tensor(vectors[:, :columns], requires_grad=True)
        features = [{"vectors": given[:, column]} for column in range(columns)]
        value = loss(features, torch.tensor(scores))
        value.backward()
        arrays[f"{name}_loss"] = np.float32(value.item())
        arrays[f"{name}_gradient"] = given.grad.numpy()
    np.savez(path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
