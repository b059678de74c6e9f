"""Computes layer-wise learning-rate decay, as multipliers for AdamWeightDecay."""

from keras_bert.common.errors import InputError


def layer_decay_multipliers(decay: float, num_hidden_layers: int) -> list[tuple[str, float]]:
    """Returns learning-rate multipliers with which lower, more general layers learn more slowly.

    The last block, the pooler and the heads have multiplier 1. Each other block has `decay` times
    the multiplier of the block above it, and the embeddings `decay` times that of the first block.

    Returns:
        (regular expression, factor) pairs for `AdamWeightDecay`; variables without a match have 1.

    Raises:
        InputError: the decay is not in (0, 1].

    Source: Sun et al. 2019, "How to fine-tune BERT for text classification", section 5.3.4.
    """
    if not 0 < decay <= 1:
        raise InputError(f"--layer_decay must be above 0 and at most 1, got {decay!r}")
    if decay == 1:
        return []
    blocks = [
        (rf"(^|/)encoder/layer_{index}/", decay ** (num_hidden_layers - 1 - index))
        for index in range(num_hidden_layers)
    ]
    return [(r"(^|/)encoder/embeddings/", decay**num_hidden_layers), *blocks]
