"""Computes losses of CrossEncoders of sentence-transformers and their gradients.

    .peers/bin/python tests/golden/make_reranking_losses_golden.py tests/golden/reranking_losses.npz

`logits` is float32 [12], of pairs with `labels`, or of 3 groups of 4 passages, of which the first
is the positive. For each loss, NAME_loss is its value and NAME_gradient [12] its gradient.
"""

import sys

import numpy as np
import torch
from sentence_transformers.cross_encoder import CrossEncoder, losses

SIZE = 4
# As the softmax of these labels is the target of ListNetLoss, all of it is on the positive.
RELEVANT = 1e4


class Lookup(CrossEncoder):
    """A CrossEncoder whose logits are a parameter, and whose passages are their indices."""

    num_labels, device = 1, torch.device("cpu")

    def __init__(self, logits: np.ndarray):
        torch.nn.Module.__init__(self)
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def preprocess(self, pairs: list, **_: object) -> dict:
        """Returns the indices of the passages."""
        return {"index": torch.tensor([int(passage) for _, passage in pairs])}

    def forward(self, features: dict, **_: object) -> dict:
        """Returns the logits of the passages."""
        return {"scores": self.logits[features["index"]][:, None]}


def main(path: str) -> None:
    """Writes the inputs, losses and gradients."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=12, scale=3).astype(np.float32)
    labels = np.array([1, 0, 0.5, 0.25, 1, 1, 0, 0, 0.9, 0.1, 0, 1], np.float32)
    passages = [str(index) for index in range(12)]
    groups = [passages[start : start + SIZE] for start in range(0, 12, SIZE)]

    def binary(model: Lookup) -> torch.Tensor:
        return losses.BinaryCrossEntropyLoss(model)([["q"] * 12, passages], torch.tensor(labels))

    def list_net(model: Lookup) -> torch.Tensor:
        relevance = [torch.tensor([RELEVANT, 0, 0, 0]) for _ in groups]
        return losses.ListNetLoss(model)([["q"] * len(groups), groups], relevance)

    def ranking(model: Lookup) -> torch.Tensor:
        # One group at a time, so that there are no negatives of other groups.
        loss = losses.MultipleNegativesRankingLoss(model, None, 1, torch.nn.Identity())
        values = [loss([["q"], *([passage] for passage in group)], None) for group in groups]
        return torch.stack(values).mean()

    arrays = {"logits": logits, "labels": labels}
    for compute in (binary, list_net, ranking):
        model = Lookup(logits)
        value = compute(model)
        value.backward()
        arrays[f"{compute.__name__}_loss"] = np.float32(value.item())
        arrays[f"{compute.__name__}_gradient"] = model.logits.grad.numpy()
    np.savez(path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
