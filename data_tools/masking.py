"""Masked-LM choice: which pieces of an example are to be predicted, and what stands there instead.

In: a batch of examples, input_ids int32 [n, S] and is_text bool [n, S] (false at [CLS], [SEP] and
padding). Out: the masked input_ids, and masked_lm_positions, masked_lm_ids int32 [n, P] and
masked_lm_weights float32 [n, P].

Devlin et al. 2019, section 3.1 and appendix A.1; whole words as in Google's release of May 2019.
All examples of a batch are masked at once: choosing k of S positions at random is sorting random
keys and taking the first k.
"""

import numpy as np

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # the other 10% keep their piece


def num_to_predict(
    num_tokens: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int
) -> np.ndarray:
    """How many pieces each example predicts.

    Args:
        num_tokens: int [n], real pieces of each example, with [CLS] and both [SEP].
        masked_lm_prob: share to predict.
        max_predictions_per_seq: P, the most an example has room for.

    Returns:
        int64 [n]: min(P, max(1, round(num_tokens * masked_lm_prob))), halves rounded to even.
    """
    wanted = np.rint(num_tokens * masked_lm_prob).astype(np.int64)
    return np.clip(wanted, 1, max_predictions_per_seq)


def choose_pieces(is_text: np.ndarray, budget: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Chooses pieces one by one, every piece of A and B alike.

    Args:
        is_text: bool [n, S], where a piece may be chosen.
        budget: int [n], pieces to choose (all of them where there are fewer).
        rng: the source of every draw.

    Returns:
        bool [n, S], the pieces to predict.
    """
    order = _random_order(is_text, rng)[:, : budget.max(initial=0)]
    chosen = np.zeros_like(is_text)
    take = np.arange(order.shape[1])[None, :] < budget[:, None]
    np.put_along_axis(chosen, order, take, axis=1)
    return chosen & is_text


def choose_whole_words(
    is_text: np.ndarray, is_continuation: np.ndarray, budget: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Chooses whole words; one whose pieces would overflow the budget is skipped, not cut.

    A `##x` that opens segment A or B is a word of its own: it never joins a word across [SEP], as
    it does in Google's grouping.

    Args:
        is_text: bool [n, S], where a piece may be chosen.
        is_continuation: bool [n, S], true for `##x` pieces.
        budget: int [n], most pieces to choose.
        rng: the source of every draw.

    Returns:
        bool [n, S], the pieces to predict.
    """
    num_rows, length = is_text.shape
    follows_text = np.zeros_like(is_text)
    follows_text[:, 1:] = is_text[:, :-1]
    starts_word = is_text & ~(is_continuation & follows_text)
    word = np.cumsum(starts_word, axis=1) - 1  # number of the word in its row
    flat_word = (word + np.arange(num_rows)[:, None] * length)[is_text]
    word_length = np.bincount(flat_word, minlength=num_rows * length).reshape(num_rows, length)

    # Each row tries its words in random order; the loop takes the rows' next word side by side.
    num_words = starts_word.sum(axis=1)
    is_word = np.arange(length)[None, :] < num_words[:, None]
    order = _random_order(is_word, rng)
    chosen_word = np.zeros_like(is_text)
    taken = np.zeros(num_rows, np.int64)
    rows = np.arange(num_rows)
    for turn in range(num_words.max(initial=0)):
        candidate = order[:, turn]
        with_it = taken + word_length[rows, candidate]
        fits = (turn < num_words) & (with_it <= budget)
        chosen_word[rows[fits], candidate[fits]] = True
        taken[fits] = with_it[fits]
        if (taken >= budget).all():
            break
    return is_text & np.take_along_axis(chosen_word, np.maximum(word, 0), axis=1)


def _random_order(allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns int64 [n, S], each row's columns in random order, those not allowed at the end."""
    # float64: a tie, which processors sort differently, is as good as impossible in 53 bits.
    keys = rng.random(allowed.shape)
    keys[~allowed] = 2.0
    return np.argsort(keys, axis=1)


def corrupt(
    input_ids: np.ndarray,
    chosen: np.ndarray,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Replaces chosen pieces: 80% by [MASK], 10% by a random id, 10% not, drawn piece by piece.

    Args:
        input_ids: int32 [n, S].
        chosen: bool [n, S].
        mask_id: id of [MASK].
        vocab_size: V; a random id is any of the V.
        rng: the source of every draw.

    Returns:
        int32 [n, S], a new array.
    """
    fate = rng.random(np.count_nonzero(chosen))
    random_ids = (rng.random(len(fate)) * vocab_size).astype(input_ids.dtype)
    original = input_ids[chosen]
    replacement = np.where(fate < MASK_SHARE + RANDOM_SHARE, random_ids, original)
    replacement[fate < MASK_SHARE] = mask_id
    corrupted = input_ids.copy()
    corrupted[chosen] = replacement
    return corrupted


def predictions(
    input_ids: np.ndarray, chosen: np.ndarray, max_predictions_per_seq: int
) -> dict[str, np.ndarray]:
    """Lists what is to be predicted, by position; padding is position 0, id 0, weight 0.0.

    Args:
        input_ids: int32 [n, S], before they were corrupted.
        chosen: bool [n, S], at most P a row.
        max_predictions_per_seq: P.

    Returns:
        masked_lm_positions, masked_lm_ids int32 [n, P]; masked_lm_weights float32 [n, P].
    """
    shape = (len(input_ids), max_predictions_per_seq)
    row, position = np.nonzero(chosen)  # row by row, positions rising
    slot = (np.cumsum(chosen, axis=1) - 1)[row, position]
    result = {
        "masked_lm_positions": np.zeros(shape, np.int32),
        "masked_lm_ids": np.zeros(shape, np.int32),
        "masked_lm_weights": np.zeros(shape, np.float32),
    }
    result["masked_lm_positions"][row, slot] = position
    result["masked_lm_ids"][row, slot] = input_ids[row, position]
    result["masked_lm_weights"][row, slot] = 1.0
    return result
