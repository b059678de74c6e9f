"""Layer-wise learning-rate decay, as learning-rate multipliers for AdamWeightDecay."""

from keras_bert.common.errors import InputError


def layer_decay_multipliers(decay: float, num_hidden_layers: int) -> list[tuple[str, float]]:
    """Returns the learning-rate multipliers of all layers; lower, more general layers learn slower.

    The last block, the pooler and the heads have multiplier 1, each block below has `decay` times
    that of the block above it, and the embeddings have `decay` times that of the first block.

    Args:
        decay: factor per layer, in (0, 1]; 1 for the same rate in all layers.
        num_hidden_layers: blocks of the encoder.

    Returns:
        (regular expression on variable paths, factor) pairs.

    Raises:
        InputError: if the decay is not in (0, 1].

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
