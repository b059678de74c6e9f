"""Layer-wise learning-rate decay, as a table of multipliers for AdamWeightDecay."""

from keras_bert.common.errors import InputError


def layer_decay_multipliers(decay: float, num_hidden_layers: int) -> list[tuple[str, float]]:
    """Lets lower layers learn more slowly, as they are more general.

    The pooler, the heads and the last block learn at the full rate, each block below at `decay`
    times the rate of the one above it, the embeddings at `decay` times that of the first block.

    Args:
        decay: the factor a layer, above 0; 1 for one rate for all.
        num_hidden_layers: blocks of the encoder.

    Returns:
        (regular expression on variable paths, factor) pairs.

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
