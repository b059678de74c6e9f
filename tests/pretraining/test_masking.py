"""Tests of choosing masked-LM predictions against the rules in FACTS (pre-training data)."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_bert.pretraining.masking import Masking, mask_examples, num_to_predict

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB_SIZE = 1000
VOCAB = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"] + [
    f"##{number}" if number % 3 == 0 else f"{number}" for number in range(4, VOCAB_SIZE)
]
WHOLE, CONTINUED = 10, 12  # a token that starts a word, and one that continues it


def masking(most=20, prob=0.15, whole_words=False, ngram=1) -> Masking:
    return Masking.from_vocab(VOCAB, prob, most, whole_words, ngram)


def batch(rng, num_rows, length, examples=1):
    """Returns input_ids, input_mask and example_ids of random rows.

    A row holds `examples` examples of the form `[CLS] A [SEP] B [SEP]`.
    """
    ids = np.full((num_rows, length), PAD, np.int32)
    example_ids = np.zeros((num_rows, length), np.int32)
    for row in range(num_rows):
        at = 0
        for number in range(1, examples + 1):
            real = rng.integers(5, length // examples + 1)
            middle = rng.integers(2, real - 2)
            ids[row, at : at + real] = rng.integers(10, VOCAB_SIZE, real)
            ids[row, [at, at + middle, at + real - 1]] = CLS, SEP, SEP
            example_ids[row, at : at + real] = number
            at += real
    return ids, (ids != PAD).astype(np.int32), example_ids


def chosen_of(masked) -> np.ndarray:
    """Returns a bool array [n, S] of the predicted positions."""
    chosen = np.zeros(masked["input_ids"].shape, bool)
    row, slot = masked["masked_lm_weights"].nonzero()
    chosen[row, masked["masked_lm_positions"][row, slot]] = True
    return chosen


def choose(ids, how):
    ids = np.array(ids, np.int32)
    return chosen_of(mask_examples(ids, ids != PAD, how, np.random.default_rng(0)))


def words_of(ids):
    """Returns the words of one example as lists of positions, by a simple implementation."""
    words = []
    for position, token in enumerate(ids.tolist()):
        if token in (PAD, CLS, SEP):
            continue
        if words and VOCAB[token].startswith("##") and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def test_number_of_predictions_is_rounded_like_in_python():
    """Python rounds half to even: 10 x 0.15 = 1.5 gives 2, 30 x 0.15 = 4.5 gives 4."""
    lengths = np.arange(5, 513)
    for prob, most in ((0.15, 20), (0.1, 76), (0.02, 1)):
        expected = [min(most, max(1, round(int(length) * prob))) for length in lengths]
        np.testing.assert_array_equal(num_to_predict(lengths, prob, most), expected)
    assert num_to_predict(np.array([30, 10]), 0.15, 20).tolist() == [4, 2]


kinds = pytest.mark.parametrize(
    ("whole_words", "ngram"), [(False, 1), (True, 1), (False, 3), (True, 3)]
)


@kinds
@given(
    st.integers(0, 10**6),
    st.integers(8, 64),
    st.integers(3, 30),
    st.sampled_from([0.15, 0.6]),
    st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_chosen_tokens_respect_words_and_number_of_predictions(
    whole_words, ngram, seed, length, most, prob, examples
):
    """Each example of a packed row has its own number of predictions."""
    rng = np.random.default_rng(seed)
    if examples > 1:
        length = most = 64
    ids, mask, example_ids = batch(rng, 20, length, examples)
    how = masking(most, prob, whole_words, ngram)
    rows = example_ids if examples > 1 else None
    chosen = chosen_of(mask_examples(ids, mask, how, rng, rows))
    assert not (chosen & np.isin(ids, (PAD, CLS, SEP))).any()
    for row, number in itertools.product(range(len(ids)), range(1, examples + 1)):
        inside = example_ids[row] == number
        budget = num_to_predict(np.array([inside.sum()]), prob, most)[0]
        words = words_of(np.where(inside, ids[row], PAD))
        left = budget - chosen[row, inside].sum()
        if not whole_words:  # always reached, because too long n-grams are truncated
            assert left == max(0, budget - sum(map(len, words)))
            continue
        assert left >= 0
        for word in words:
            assert len({bool(chosen[row, position]) for position in word}) == 1
        # A word is skipped only if it is longer than the rest of the limit.
        assert all(len(word) > left for word in words if not chosen[row, word[0]])


@kinds
def test_example_without_text_has_no_predictions(whole_words, ngram):
    ids = [[CLS, SEP, SEP, PAD], [PAD] * 4, [CLS, WHOLE, SEP, PAD]]
    chosen = choose(ids, masking(3, 0.15, whole_words, ngram))
    assert chosen.sum(axis=1).tolist() == [0, 0, 1]


def exact_choice(sizes, segment_ends, budget, ngram):
    """Returns {chosen units: probability} for every outcome, by a simple implementation."""
    outcomes = Counter()

    def choose_next_unit(untried, taken, left, probability):
        if not left or not untried:
            outcomes[tuple(sorted(taken))] += probability
            return
        for unit in untried:
            room = min(ngram, min(end for end in segment_ends if end > unit) - unit)
            total = sum(1 / n for n in range(1, room + 1))
            for n in range(1, room + 1):
                run, rest = [], left
                for member in range(unit, unit + n):
                    if member in taken or sizes[member] > rest:
                        break
                    run.append(member)
                    rest -= sizes[member]
                share = probability / len(untried) / n / total
                choose_next_unit(untried - {unit}, taken | set(run), rest, share)

    choose_next_unit(frozenset(range(len(sizes))), frozenset(), budget, 1.0)
    return outcomes


@pytest.mark.parametrize("ngram", [1, 2, 3])
@pytest.mark.parametrize(
    ("sizes", "segment_ends", "budget"),
    [
        ([1, 1, 1, 1, 1, 1], [4, 6], 2),
        ([1, 1, 1, 1, 1, 1], [6], 3),
        ([1, 2, 1, 1, 2, 3], [3, 6], 3),
    ],
)
def test_ngram_lengths_are_drawn_with_probability_proportional_to_1_over_n(
    sizes, segment_ends, budget, ngram
):
    """Compares every outcome with its probability by ALBERT's rule; n-grams stop at [SEP]."""
    row, units = [CLS], []
    for number, size in enumerate(sizes, start=1):
        units.append(len(row))
        row += [WHOLE] + [CONTINUED] * (size - 1) + [SEP] * (number in segment_ends)
    rows = 30000
    how = masking(budget, 1.0, max(sizes) > 1, ngram)
    chosen = choose(np.tile(row, (rows, 1)), how)[:, units]
    expected = exact_choice(sizes, segment_ends, budget, ngram)
    seen = Counter(tuple(np.flatnonzero(chosen_row).tolist()) for chosen_row in chosen)
    assert seen.keys() <= expected.keys()
    counts = [(seen[outcome], rows * share) for outcome, share in expected.items()]
    assert stats.chisquare(*zip(*counts, strict=True)).pvalue > 1e-4


def fates(ids, prob, seed):
    """Returns the original and the new ids at the chosen positions."""
    how = masking(ids.shape[1], prob)
    masked = mask_examples(ids, ids != PAD, how, np.random.default_rng(seed))
    chosen = chosen_of(masked)
    np.testing.assert_array_equal(masked["input_ids"][~chosen], ids[~chosen])
    return ids[chosen], masked["input_ids"][chosen]


def test_replacements_are_80_10_10_percent():
    ids = np.random.default_rng(3).integers(10, VOCAB_SIZE, (1000, 400)).astype(np.int32)
    before, after = fates(ids, 0.5, seed=3)
    count = len(before)
    assert count == 200_000
    masked = (after == MASK).sum()
    kept = (after == before).sum()
    # A random id is [MASK], or the token itself, once in VOCAB_SIZE times.
    for seen, share in (
        (masked, 0.8 + 0.1 / VOCAB_SIZE),
        (kept, 0.1 + 0.1 / VOCAB_SIZE),
        (count - masked - kept, 0.1 - 0.2 / VOCAB_SIZE),
    ):
        assert stats.binomtest(int(seen), int(count), share).pvalue > 1e-4


def test_replacements_are_drawn_per_token_within_a_word():
    ids = np.tile(np.array([WHOLE, CONTINUED], np.int32), (20000, 1))
    how = masking(2, 1.0, whole_words=True)
    after = mask_examples(ids, ids != PAD, how, np.random.default_rng(5))["input_ids"]
    both = int((after == MASK).all(axis=1).sum())
    assert stats.binomtest(both, 20000, (0.8 + 0.1 / VOCAB_SIZE) ** 2).pvalue > 1e-4


@kinds
def test_predictions_are_sorted_and_padded(whole_words, ngram):
    rng = np.random.default_rng(6)
    ids, mask, _ = batch(rng, 200, 40)
    masked = mask_examples(ids, mask, masking(9, 0.15, whole_words, ngram), rng)
    positions, weights = masked["masked_lm_positions"], masked["masked_lm_weights"]
    assert np.isin(weights, (0.0, 1.0)).all()
    is_padding = weights == 0
    assert (np.diff(is_padding.astype(int), axis=1) >= 0).all()  # padding comes last
    rises = np.diff(positions, axis=1) > 0
    assert (rises | is_padding[:, 1:]).all()
    originals = np.take_along_axis(ids, positions, axis=1)
    np.testing.assert_array_equal(masked["masked_lm_ids"], np.where(is_padding, 0, originals))
    assert not positions[is_padding].any()
    assert {name: values.dtype.name for name, values in masked.items()} == {
        "input_ids": "int32",
        "masked_lm_positions": "int32",
        "masked_lm_ids": "int32",
        "masked_lm_weights": "float32",
    }
