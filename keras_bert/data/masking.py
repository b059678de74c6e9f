"""Chooses the tokens of an example to predict (masked LM), and replaces them.

Follows Devlin et al. 2019, section 3.1 and appendix A.1; whole-word masking as in Google's release
of May 2019; n-grams as in ALBERT (Lan et al. 2020, section 3.1). It uses only NumPy, because it is
shared by the data tool, which masks once, and by training, which draws new masks at every step.

All rows of a batch are masked at once. The tokens that may be chosen are numbered through the
batch, row by row (`text`). An example is a range of these numbers, because a row may contain
several examples.

n rows, S length, P predictions, E examples, T tokens that may be chosen, k chosen tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # the other 10% keep the token


@dataclass(frozen=True)
class Masking:
    """The masking settings of a dataset.

    Attributes:
        masked_lm_prob: share of the tokens to predict.
        max_predictions_per_seq: P, the maximum number of predicted tokens in a row.
        do_whole_word_mask: whether all tokens of a word are masked together.
        ngram: the maximum length of a masked run of tokens, or of words with do_whole_word_mask.
        vocab_size: V; a random token is any of the V.
        cls_token_id: id of [CLS].
        sep_token_id: id of [SEP].
        mask_token_id: id of [MASK].
        is_continuation: bool [V], true for `##x` tokens.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    do_whole_word_mask: bool
    ngram: int
    vocab_size: int
    cls_token_id: int
    sep_token_id: int
    mask_token_id: int
    is_continuation: np.ndarray

    @classmethod
    def from_vocab(
        cls,
        vocab: Sequence[str],
        masked_lm_prob: float,
        max_predictions_per_seq: int,
        do_whole_word_mask: bool = False,
        ngram: int = 1,
    ) -> "Masking":
        """Creates the settings, with the ids of the special tokens in a vocabulary.

        `vocab` lists the V tokens in the order of their ids. The other arguments are attributes of
        the class.
        """
        return cls(
            masked_lm_prob=masked_lm_prob,
            max_predictions_per_seq=max_predictions_per_seq,
            do_whole_word_mask=do_whole_word_mask,
            ngram=ngram,
            vocab_size=len(vocab),
            cls_token_id=vocab.index("[CLS]"),
            sep_token_id=vocab.index("[SEP]"),
            mask_token_id=vocab.index("[MASK]"),
            is_continuation=np.array([token.startswith("##") for token in vocab]),
        )


def num_to_predict(
    num_tokens: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int
) -> np.ndarray:
    """Computes the number of tokens to predict in each example.

    The number is min(P, max(1, round(num_tokens * masked_lm_prob))). Halves are rounded to even.

    Args:
        num_tokens: int [E], the number of tokens of each example, including [CLS] and [SEP].
        masked_lm_prob: share of the tokens to predict.
        max_predictions_per_seq: P.

    Returns:
        int64 [E].
    """
    requested = np.rint(num_tokens * masked_lm_prob).astype(np.int64)
    return np.clip(requested, 1, max_predictions_per_seq)


def mask_examples(
    input_ids: np.ndarray,
    input_mask: np.ndarray,
    masking: Masking,
    rng: np.random.Generator,
    example_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks a batch.

    Args:
        input_ids: int [n, S], before masking. [CLS] and [SEP] are never chosen.
        input_mask: int [n, S], 0 at padding.
        masking: the masking settings.
        rng: the random generator.
        example_ids: int [n, S], only for packed rows: 1 to k from left to right, 0 at padding. Each
            example predicts its own share of tokens; together they must fit in P.

    Returns:
        input_ids int32 [n, S], masked; masked_lm_positions (ascending) and masked_lm_ids, int32 [n,
        P]; masked_lm_weights, float32 [n, P]. Unused predictions at the end of a row have position
        0, id 0 and weight 0.0.
    """
    is_real = np.asarray(input_mask) != 0
    ids = np.array(input_ids, np.int32).ravel()  # a copy, which is masked below
    special = (ids == masking.cls_token_id) | (ids == masking.sep_token_id)
    is_text = is_real & ~special.reshape(is_real.shape)
    text = np.flatnonzero(is_text)

    num_tokens, num_text = _lengths(is_real, is_text, example_ids)
    budget = num_to_predict(num_tokens, masking.masked_lm_prob, masking.max_predictions_per_seq)
    if masking.ngram == 1 and not masking.do_whole_word_mask:
        chosen = _choose_tokens(num_text, budget, rng)
    else:
        chosen = _choose_runs(text, ids[text], num_text, budget, masking, rng)

    position = text[np.flatnonzero(chosen)]  # faster than boolean indexing
    original = ids[position]
    ids[position] = _replace(original, masking, rng)
    return {
        "input_ids": ids.reshape(is_real.shape),
        **_predictions(position, original, is_real.shape, masking.max_predictions_per_seq),
    }


def _lengths(
    is_real: np.ndarray, is_text: np.ndarray, example_ids: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Counts the tokens of each example, and those that may be chosen: int64 [E] each."""
    if example_ids is None:
        return np.count_nonzero(is_real, axis=1), np.count_nonzero(is_text, axis=1)
    num_example_ids = int(np.max(example_ids, initial=0)) + 1
    example = np.arange(len(is_real))[:, None] * num_example_ids + example_ids
    num_tokens = np.bincount(example[is_real])
    num_text = np.bincount(example[is_text], minlength=len(num_tokens))
    return num_tokens[num_tokens > 0], num_text[num_tokens > 0]


def _choose_tokens(
    num_text: np.ndarray, budget: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Chooses up to `budget` tokens of each example, uniformly and without replacement.

    This is Floyd's algorithm for drawing k of n, for all examples in parallel: for top from n - k
    to n - 1, draw a number from [0, top]; if it has been drawn before, take `top` instead.

    num_text and budget are int64 [E]. Returns bool [sum of num_text].
    """
    chosen = np.zeros(num_text.sum(), bool)
    budget = np.minimum(budget, num_text)
    first = np.cumsum(num_text) - num_text
    bottom = num_text - budget
    # Largest budgets first, so that the examples that still draw are always a prefix of the arrays.
    order = np.argsort(-budget, kind="stable")
    first, bottom = first[order], bottom[order]
    num_active = np.searchsorted(-budget[order], -np.arange(budget.max(initial=0)))
    for turn, count in enumerate(num_active.tolist()):
        top = bottom[:count] + turn
        drawn = first[:count] + (rng.random(count) * (top + 1)).astype(np.int64)
        chosen[np.where(chosen[drawn], first[:count] + top, drawn)] = True
    return chosen


def _choose_runs(
    text: np.ndarray,
    text_ids: np.ndarray,
    num_text: np.ndarray,
    budget: np.ndarray,
    masking: Masking,
    rng: np.random.Generator,
) -> np.ndarray:
    """Chooses runs of 1 to `ngram` units, which are tokens or whole words.

    The units of an example are tried in random order as the first of a run. The run's length n is
    drawn with a probability proportional to 1/n from the lengths that fit in the segment. The run
    is truncated to the remaining budget and at runs chosen before; a unit that does not fit on its
    own is skipped. A `##x` at the start of a segment is a word of its own: neither words nor runs
    cross [SEP], unlike in Google's code, where words do.

    text int64 [T], positions of the tokens in the flattened batch; text_ids int32 [T]; num_text and
    budget int64 [E], tokens of each example and the maximum to choose. Returns bool [T].
    """
    opens_segment = np.diff(text, prepend=-2) > 1
    starts_unit = np.ones(len(text), bool)
    if masking.do_whole_word_mask:
        starts_unit = opens_segment | ~masking.is_continuation[text_ids]
    unit_start = np.append(np.flatnonzero(starts_unit), len(text))
    num_all = len(unit_start) - 1
    segment_opener = np.append(np.flatnonzero(opens_segment[unit_start[:-1]]), num_all)
    segment_end = np.repeat(segment_opener[1:], np.diff(segment_opener))  # of each unit, in units
    example_end = np.searchsorted(unit_start, np.cumsum(num_text))
    first_unit = np.concatenate([[0], example_end[:-1]])[: len(example_end)]
    num_units = example_end - first_unit

    cumulative_weights = np.cumsum(1 / np.arange(1, masking.ngram + 1))
    waiting = np.arange(num_all)  # each example's units; tried units are swapped to the front
    taken = np.zeros(num_all, bool)
    left = budget.copy()
    active = np.arange(len(budget))
    for turn in range(num_units.max(initial=0)):
        active = active[(left[active] > 0) & (num_units[active] > turn)]
        if not len(active):
            break
        front = first_unit[active] + turn
        drawn = front + (rng.random(len(active)) * (num_units[active] - turn)).astype(np.int64)
        unit = waiting[drawn]
        waiting[drawn] = waiting[front]

        room = np.minimum(segment_end[unit] - unit, masking.ngram)
        requested = np.ones_like(room)
        if masking.ngram > 1:
            draw = rng.random(len(active)) * cumulative_weights[room - 1]
            requested += np.searchsorted(cumulative_weights, draw, side="right")
        length = np.zeros_like(room)
        for step in range(masking.ngram):
            last = np.minimum(unit + step, num_all - 1)
            tokens = unit_start[last + 1] - unit_start[unit]
            fits = (step < requested) & ~taken[last] & (tokens <= left[active])
            length += fits & (length == step)
        for step in range(masking.ngram):
            taken[unit[length > step] + step] = True
        left[active] -= unit_start[unit + length] - unit_start[unit]
    return np.repeat(taken, np.diff(unit_start))


def _replace(original: np.ndarray, masking: Masking, rng: np.random.Generator) -> np.ndarray:
    """Draws a replacement for each chosen token: 80% [MASK], 10% a random id, 10% unchanged."""
    outcome = rng.random(len(original))
    replacement = np.where(outcome < MASK_SHARE, np.int32(masking.mask_token_id), original)
    at_random = np.flatnonzero((outcome >= MASK_SHARE) & (outcome < MASK_SHARE + RANDOM_SHARE))
    replacement[at_random] = rng.random(len(at_random)) * masking.vocab_size
    return replacement


def _predictions(
    position: np.ndarray, original: np.ndarray, shape: tuple[int, int], max_predictions: int
) -> dict[str, np.ndarray]:
    """Lists the tokens to predict, row by row, for input shape (n, S).

    position int64 [k] has the ascending positions of the tokens `original`, int32 [k], in the
    flattened batch. Returns masked_lm_positions, masked_lm_ids int32 [n, P]; masked_lm_weights
    float32 [n, P].
    """
    num_rows, length = shape
    row = position // length
    first_of_row = np.searchsorted(position, np.arange(num_rows) * length)
    slot = row * max_predictions + np.arange(len(position)) - first_of_row[row]
    result = {}
    for name, values in {
        "masked_lm_positions": (position - row * length).astype(np.int32),
        "masked_lm_ids": original,
        "masked_lm_weights": np.ones(len(position), np.float32),
    }.items():
        flat = np.zeros(num_rows * max_predictions, values.dtype)
        flat[slot] = values
        result[name] = flat.reshape(num_rows, max_predictions)
    return result
