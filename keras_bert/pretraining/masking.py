"""Masks the tokens of examples for masked-LM prediction.

Follows Devlin et al. 2019, section 3.1 and appendix A.1; whole-word masking as in Google's release
of May 2019; n-grams as in ALBERT (Lan et al. 2020, section 3.1). This module uses only NumPy,
because both the data tool and training import it.

The tokens of a batch that may be chosen are numbered row by row. An example is represented as a
range of these numbers, because a packed row contains several examples.

Shapes: n rows, S length, P predictions in a row; in a batch, E examples, T tokens that may be
chosen, and k chosen tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # the other 10% of the chosen tokens are unchanged


@dataclass(frozen=True)
class Masking:
    """The masking settings of a dataset.

    Attributes:
        masked_lm_prob: the fraction of the tokens to predict.
        max_predictions_per_seq: P, the maximum number of predicted tokens in a row.
        do_whole_word_mask: whether all tokens of a word are masked together.
        ngram: the maximum length of a masked run of tokens, or of words with do_whole_word_mask.
        vocab_size: V; a random token is any of the V.
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
        """Creates the settings; `vocab` lists the V tokens in the order of their ids."""
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
    """Computes the number of tokens to predict in each example, int64 [E].

    The number is min(P, max(1, round(num_tokens * masked_lm_prob))), with halves rounded to even.
    `num_tokens`, int [E], includes [CLS] and [SEP].
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
    """Chooses the tokens to predict in a batch, and masks them.

    Args:
        input_ids: int [n, S], before masking. [CLS] and [SEP] are never chosen.
        input_mask: int [n, S], 0 at padding.
        masking: the masking settings.
        rng: the random generator.
        example_ids: int [n, S], only for packed rows: the number of the example in its row, from 1,
            and 0 at padding. The predictions of all examples in a row must fit in P.

    Returns:
        input_ids, int32 [n, S], masked; masked_lm_positions (ascending) and masked_lm_ids (the
        original ids), int32 [n, P]; masked_lm_weights, float32 [n, P], 1 for each chosen token. All
        three are 0 for unused predictions, at the end of a row.
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
    """Counts all tokens of each example, and its tokens that may be chosen, int64 [E] each."""
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

    Floyd's algorithm draws k of n numbers: for each `top` from n - k to n - 1, draw a number from
    [0, top], and take `top` instead if the number has been drawn before. It runs for all examples
    in parallel. num_text, int64 [E], is the number of tokens of each example that may be chosen.
    Returns bool [T], true for chosen tokens.
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
    """Chooses runs of 1 to `ngram` units (tokens or whole words) of each example.

    The units of an example are tried in random order as the start of a run. The length of the run
    is drawn from the lengths that fit in the segment, with probabilities proportional to 1/length.
    A run ends early at a unit that is already chosen or exceeds the remaining budget. Unlike in
    Google's code, words do not cross [SEP]: `##x` at the start of a segment starts a word.

    For the tokens that may be chosen, text, int64 [T], has the positions in the flattened batch,
    and text_ids, int32 [T], the ids. num_text, int64 [E], is the number of these tokens in each
    example, and budget, int64 [E], the maximum to choose. Returns bool [T], true for chosen tokens.
    """
    opens_segment = np.diff(text, prepend=-2) > 1
    starts_unit = np.ones(len(text), bool)
    if masking.do_whole_word_mask:
        starts_unit = opens_segment | ~masking.is_continuation[text_ids]
    unit_start = np.append(np.flatnonzero(starts_unit), len(text))
    num_all = len(unit_start) - 1
    segment_opener = np.append(np.flatnonzero(opens_segment[unit_start[:-1]]), num_all)
    # For each unit, the end of its segment, as an index of units.
    segment_end = np.repeat(segment_opener[1:], np.diff(segment_opener))
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
    """Replaces 80% of the token ids [k] by [MASK] and 10% by random ids; 10% are unchanged."""
    outcome = rng.random(len(original))
    replacement = np.where(outcome < MASK_SHARE, np.int32(masking.mask_token_id), original)
    at_random = np.flatnonzero((outcome >= MASK_SHARE) & (outcome < MASK_SHARE + RANDOM_SHARE))
    replacement[at_random] = rng.random(len(at_random)) * masking.vocab_size
    return replacement


def _predictions(
    position: np.ndarray, original: np.ndarray, shape: tuple[int, int], max_predictions: int
) -> dict[str, np.ndarray]:
    """Builds the masked-LM features of a batch with input shape (n, S).

    position, int64 [k], has the ascending positions of the chosen tokens in the flattened batch;
    original, int32 [k], their ids before masking.
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
