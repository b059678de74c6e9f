"""Masked-LM choice, fact by fact (FACTS: pre-training data)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from data_tools.masking import (
    choose_pieces,
    choose_whole_words,
    corrupt,
    num_to_predict,
    predictions,
)

CLS, SEP, MASK, PAD = 1, 2, 3, 0
VOCAB_SIZE = 1000


def batch(rng, num_rows, length):
    """Random examples: input_ids, is_text, is_continuation."""
    ids = np.full((num_rows, length), PAD, np.int32)
    is_text = np.zeros((num_rows, length), bool)
    for row in range(num_rows):
        real = rng.integers(5, length + 1)
        middle = rng.integers(2, real - 2)
        ids[row, :real] = rng.integers(10, VOCAB_SIZE, real)
        ids[row, [0, middle, real - 1]] = CLS, SEP, SEP
        is_text[row, :real] = True
        is_text[row, [0, middle, real - 1]] = False
    is_continuation = (ids >= 10) & (ids % 3 == 0)
    return ids, is_text, is_continuation


def words_of(is_text, is_continuation):
    """The words of one example, each a list of positions, the plain way."""
    words = []
    for position in np.flatnonzero(is_text):
        if words and is_continuation[position] and words[-1][-1] == position - 1:
            words[-1].append(int(position))
        else:
            words.append([int(position)])
    return words


@pytest.mark.parametrize("prob", [0.15, 0.1, 0.5, 0.02, 1.0])
@pytest.mark.parametrize("most", [1, 20, 76])
def test_the_budget_is_rounded_as_python_rounds(prob, most):
    """Banker's rounding: 10 x 0.15 = 1.5 gives 2, 30 x 0.15 = 4.5 gives 4."""
    lengths = np.arange(5, 513)
    expected = [min(most, max(1, round(int(length) * prob))) for length in lengths]
    np.testing.assert_array_equal(num_to_predict(lengths, prob, most), expected)
    assert num_to_predict(np.array([30, 10]), 0.15, 20).tolist() == [4, 2]


@pytest.mark.parametrize("whole_words", [False, True])
@given(st.integers(0, 10**6), st.integers(8, 64), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_what_is_chosen(whole_words, seed, length, most):
    rng = np.random.default_rng(seed)
    ids, is_text, is_continuation = batch(rng, 20, length)
    budget = num_to_predict((ids != PAD).sum(axis=1), 0.15, most)
    if whole_words:
        chosen = choose_whole_words(is_text, is_continuation, budget, rng)
    else:
        chosen = choose_pieces(is_text, budget, rng)
    assert not (chosen & ~is_text).any()  # never [CLS], [SEP] or padding
    for row in range(len(ids)):
        count = chosen[row].sum()
        if not whole_words:
            assert count == budget[row]
            continue
        words = words_of(is_text[row], is_continuation[row])
        left = budget[row] - count
        assert left >= 0
        for word in words:
            assert len({bool(chosen[row, position]) for position in word}) == 1
        # A word is left out only when it would have overflowed what was left.
        assert all(len(word) > left for word in words if not chosen[row, word[0]])


def test_a_budget_above_the_text_takes_all_of_it():
    is_text = np.array([[0, 1, 0, 1, 0, 0]], bool)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(choose_pieces(is_text, np.array([4]), rng), is_text)
    every = choose_whole_words(is_text, np.zeros_like(is_text), np.array([4]), rng)
    np.testing.assert_array_equal(every, is_text)


def test_every_piece_is_chosen_alike():
    is_text = np.tile(np.array([0, *[1] * 9, 0, *[1] * 8, 0, 0, 0], bool), (20000, 1))
    chosen = choose_pieces(is_text, np.full(20000, 3), np.random.default_rng(1))
    counts = chosen.sum(axis=0)[is_text[0]]
    # Three of seventeen a row, without replacement: the statistic shrinks by (17 - 3) / (17 - 1).
    statistic = stats.chisquare(counts).statistic * 16 / 14
    assert stats.chi2.sf(statistic, 16) > 1e-4


def test_every_word_of_a_length_is_chosen_alike():
    is_text = np.tile(np.array([0, *[1] * 12, 0], bool), (20000, 1))
    is_continuation = np.zeros_like(is_text)
    is_continuation[:, [3, 6, 9, 10, 11]] = True  # words of 1, 2, 1, 2, 1, 4 pieces and 1
    budget = np.full(20000, 4)
    chosen = choose_whole_words(is_text, is_continuation, budget, np.random.default_rng(2))
    counts = chosen.sum(axis=0)
    for alike in ([1, 4, 7, 12], [2, 5]):
        share = counts[alike] / 20000
        assert np.ptp(share) < 5 * np.sqrt(2 * share.mean() * (1 - share.mean()) / 20000)


@pytest.mark.parametrize("seed", range(20))
def test_a_continuation_that_opens_a_segment_is_a_word_of_its_own(seed):
    """[CLS] a ##b [SEP] ##c ##d [SEP]: Google's grouping joins ##c ##d to `a ##b`; ours doesn't."""
    is_text = np.array([[0, 1, 1, 0, 1, 1, 0]], bool)
    is_continuation = np.array([[0, 0, 1, 0, 1, 1, 0]], bool)
    rng = np.random.default_rng(seed)
    chosen = choose_whole_words(is_text, is_continuation, np.array([2]), rng)[0]
    assert chosen.nonzero()[0].tolist() in ([1, 2], [4, 5])


def test_a_word_larger_than_the_budget_is_skipped_not_cut():
    is_text = np.array([[0, 1, 1, 1, 0, 1, 0]], bool)
    is_continuation = np.array([[0, 0, 1, 1, 0, 0, 0]], bool)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        chosen = choose_whole_words(is_text, is_continuation, np.array([2]), rng)
        assert chosen[0].nonzero()[0].tolist() == [5]


def test_80_10_10_within_a_tight_binomial_bound():
    rng = np.random.default_rng(3)
    ids = rng.integers(10, VOCAB_SIZE, (1000, 400)).astype(np.int32)
    chosen = rng.random(ids.shape) < 0.5
    corrupted = corrupt(ids, chosen, MASK, VOCAB_SIZE, rng)
    np.testing.assert_array_equal(corrupted[~chosen], ids[~chosen])

    count = chosen.sum()
    before, after = ids[chosen], corrupted[chosen]
    masked = (after == MASK).sum()
    kept = (after == before).sum()
    # A random id is [MASK], or the piece itself, once in VOCAB_SIZE times.
    for seen, share in (
        (masked, 0.8 + 0.1 / VOCAB_SIZE),
        (kept, 0.1 + 0.1 / VOCAB_SIZE),
        (count - masked - kept, 0.1 - 0.2 / VOCAB_SIZE),
    ):
        assert stats.binomtest(int(seen), int(count), share).pvalue > 1e-4


def test_random_ids_come_from_the_whole_vocabulary():
    rng = np.random.default_rng(4)
    ids = np.full((1000, 500), 50, np.int32)
    after = corrupt(ids, np.ones_like(ids, bool), MASK, 100, rng)
    counts = np.delete(np.bincount(after.ravel(), minlength=100), [MASK, 50])
    assert len(counts) == 98
    assert stats.chisquare(counts).pvalue > 1e-4


def test_fates_are_drawn_piece_by_piece_within_a_word():
    ids = np.full((20000, 2), 50, np.int32)
    after = corrupt(ids, np.ones_like(ids, bool), MASK, VOCAB_SIZE, np.random.default_rng(5))
    both = int((after == MASK).all(axis=1).sum())
    assert stats.binomtest(both, 20000, (0.8 + 0.1 / VOCAB_SIZE) ** 2).pvalue > 1e-4


def test_predictions_are_sorted_and_padded():
    ids = np.array([[1, 11, 12, 2, 13, 2], [1, 14, 2, 15, 2, 0]], np.int32)
    chosen = np.array([[0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]], bool)
    result = predictions(ids, chosen, 3)
    assert result["masked_lm_positions"].tolist() == [[1, 4, 0], [3, 0, 0]]
    assert result["masked_lm_ids"].tolist() == [[11, 13, 0], [15, 0, 0]]
    assert result["masked_lm_weights"].tolist() == [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert result["masked_lm_weights"].dtype == np.float32


def test_an_empty_batch():
    nothing = np.zeros((0, 8), bool)
    rng = np.random.default_rng(0)
    assert choose_pieces(nothing, np.zeros(0, int), rng).shape == (0, 8)
    assert choose_whole_words(nothing, nothing, np.zeros(0, int), rng).shape == (0, 8)
