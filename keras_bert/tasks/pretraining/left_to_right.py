"""Creates labels for left-to-right prediction, where the label of each token is the next token.

Devlin et al. 2019, section 5.1, "LTR & No NSP".
"""

import tensorflow as tf

_MASKS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def next_tokens(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Replaces the masks of a batch, if it has any, with next_token_ids and next_token_weights.

    Both are [B, S], int32 and float32. The weights are 1 for tokens that have a next token in their
    example, and 0 otherwise. In input_ids, the original tokens replace the masked ones.
    """
    ids = _unmasked(batch) if _MASKS[0] in batch else batch["input_ids"]
    # The number of each token's example, 0 at padding. An unpacked row is one example.
    example = batch.get("example_ids", batch["input_mask"])
    has_next = (example[:, :-1] == example[:, 1:]) & (example[:, 1:] > 0)
    one_token = [[0, 0], [0, 1]]
    rest = {name: value for name, value in batch.items() if name not in _MASKS}
    return rest | {
        "input_ids": ids,
        "next_token_ids": tf.pad(ids[:, 1:], one_token),
        "next_token_weights": tf.pad(tf.cast(has_next, tf.float32), one_token),
    }


def _unmasked(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns input_ids with the original tokens in place of [MASK] and random tokens."""
    # [k, 2]: row and slot of each prediction, without the slots that are padding.
    slots = tf.where(batch["masked_lm_weights"] > 0)
    positions = tf.gather_nd(batch["masked_lm_positions"], slots)
    places = tf.stack([slots[:, 0], tf.cast(positions, tf.int64)], axis=1)
    original = tf.gather_nd(batch["masked_lm_ids"], slots)
    return tf.tensor_scatter_nd_update(batch["input_ids"], places, original)
