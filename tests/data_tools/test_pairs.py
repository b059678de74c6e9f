"""Tests of next-sentence pairs against the rules in FACTS, and of full sentences."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from data_tools.pairs import (
    A_END,
    A_START,
    B_END,
    B_START,
    LABEL,
    Documents,
    make_full_sentences,
    make_pairs,
    truncate_pairs,
)
from data_tools.shards import WINDOW, pack_examples
from keras_bert.pretraining.masking import num_to_predict

NEXT, RANDOM = 0, 1
IN_ORDER, SWAPPED = 0, 1


def pairs_of(documents, max_seq_length, short_seq_prob, seed, next_sentence="random"):
    rng = np.random.default_rng(seed)
    return make_pairs(documents, max_seq_length, short_seq_prob, next_sentence, rng)


def documents_of(sentence_lengths: list[list[int]]) -> Documents:
    """Returns documents with sentences of the given lengths; all token ids are different."""
    lengths = [length for document in sentence_lengths for length in document]
    return Documents(
        ids=np.arange(sum(lengths), dtype=np.int32),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        document_starts=np.cumsum([0, *map(len, sentence_lengths)]).astype(np.int64),
    )


corpora = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=2, max_size=8
).map(documents_of)


def spread(num_documents: int, num_sentences: int) -> Documents:
    rng = np.random.default_rng(0)
    return documents_of(rng.integers(3, 30, (num_documents, num_sentences)).tolist())


def document_of(documents: Documents, token: np.ndarray) -> np.ndarray:
    sentence = np.searchsorted(documents.sentence_starts, token, "right") - 1
    return np.searchsorted(documents.document_starts, sentence, "right") - 1


@given(corpora, st.integers(5, 64), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_halves_are_whole_sentences_and_unused_ones_are_used_again(
    documents, max_seq_length, short_seq_prob, seed
):
    """Checks that A, or A and the true B, cover every document once without gaps."""
    pairs = pairs_of(documents, max_seq_length, short_seq_prob, seed)
    at = 0
    for a_start, a_end, b_start, b_end, is_random in pairs.tolist():
        assert a_start == at
        at = a_end
        if not is_random:
            assert b_start == at  # B starts where A ends
            at = b_end
    assert at == len(documents.ids)
    assert np.isin(pairs[:, :4], documents.sentence_starts).all()
    for start, end in ((A_START, A_END), (B_START, B_END)):
        assert (pairs[:, start] < pairs[:, end]).all()
        of_first = document_of(documents, pairs[:, start])
        np.testing.assert_array_equal(of_first, document_of(documents, pairs[:, end] - 1))


def test_random_b_comes_from_another_document():
    """test_shards.py compares all shares and the lengths of A and B with Google's."""
    documents = spread(20, 100)
    # Chunks of one sentence have no other B.
    assert pairs_of(documents_of([[200] * 20] * 5), 128, 0.0, 1)[:, LABEL].all()
    pairs = pairs_of(documents, 64, 0.1, 2)
    pairs = pairs[pairs[:, LABEL] == RANDOM]
    a, b = (document_of(documents, pairs[:, column]) for column in (A_START, B_START))
    assert (a != b).all()
    # Every other document, and every start sentence in it, is equally likely.
    assert stats.chisquare(np.bincount(b, minlength=20)).pvalue > 1e-4
    sentence = np.searchsorted(documents.sentence_starts, pairs[:, B_START]) % 100
    assert stats.chisquare(np.bincount(sentence, minlength=100)).pvalue > 1e-4


def reference_truncation(a_length: int, b_length: int, most: int) -> tuple[int, int]:
    while a_length + b_length > most:
        if a_length > b_length:
            a_length -= 1
        else:
            b_length -= 1
    return a_length, b_length


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 125), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_longer_half_is_truncated_and_b_for_equal_lengths(a_length, b_length, most, seed):
    pairs = np.array([[1000, 1000 + a_length, 5000, 5000 + b_length, RANDOM]])
    truncated = truncate_pairs(pairs, most, np.random.default_rng(seed))[0]
    lengths = (truncated[A_END] - truncated[A_START], truncated[B_END] - truncated[B_START])
    assert lengths == reference_truncation(a_length, b_length, most)
    assert 1000 <= truncated[A_START] < truncated[A_END] <= 1000 + a_length
    assert 5000 <= truncated[B_START] < truncated[B_END] <= 5000 + b_length
    assert truncated[LABEL] == RANDOM


@pytest.mark.slow
@given(corpora, st.integers(5, 64), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_sentence_order_uses_every_token_once_except_single_token_chunks(
    documents, max_seq_length, short_seq_prob, seed
):
    pairs = pairs_of(documents, max_seq_length, short_seq_prob, seed, "order")
    at = 0
    for a_start, a_end, b_start, b_end, label in pairs.tolist():
        first, second = (a_start, a_end), (b_start, b_end)
        if label == SWAPPED:
            first, second = second, first
        assert first[1] == second[0]
        # A chunk of one sentence of one token cannot be split into two parts.
        skipped = np.isin(np.arange(at, first[0] + 1), documents.sentence_starts)
        assert skipped.all()
        assert first[0] < first[1]
        assert second[0] < second[1]
        assert len(set(document_of(documents, np.array([first[0], second[1] - 1])))) == 1
        at = second[1]
    skipped = np.arange(at, len(documents.ids) + 1)
    assert np.isin(skipped, documents.sentence_starts).all()


def test_half_of_the_pairs_are_swapped_for_any_split_position():
    pairs = pairs_of(spread(50, 400), 128, 0.0, 1, "order")
    assert stats.binomtest(int(pairs[:, LABEL].sum()), len(pairs), 0.5).pvalue > 1e-4
    is_swapped = pairs[:, LABEL] == SWAPPED
    first_length = np.where(
        is_swapped, pairs[:, B_END] - pairs[:, B_START], pairs[:, A_END] - pairs[:, A_START]
    )
    assert stats.ks_2samp(first_length[is_swapped], first_length[~is_swapped]).pvalue > 1e-4


def test_sentence_order_splits_a_single_sentence_uniformly():
    documents = documents_of([[10]] * 9000 + [[1]] * 5)
    pairs = pairs_of(documents, 128, 0.0, 2, "order")
    assert len(pairs) == 9000
    first_start = np.minimum(pairs[:, A_START], pairs[:, B_START])
    split = np.maximum(pairs[:, A_START], pairs[:, B_START]) - first_start
    counts = np.bincount(split, minlength=10)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-4


# --- full sentences (RoBERTa, section 4.2) ---


def rows_of(sentence_lengths, max_seq_length, short_seq_prob, seed):
    """Returns the rows as lists of (start, end), and their lengths."""
    rng = np.random.default_rng(seed)
    examples = make_full_sentences(
        documents_of(sentence_lengths), max_seq_length, short_seq_prob, rng
    )
    assert not examples.labels.any()
    parts, starts = examples.parts.tolist(), examples.first_part.tolist()
    return [parts[a:b] for a, b in itertools.pairwise(starts)], examples.lengths()


lengths_of_sentences = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=20), min_size=1, max_size=8
)


@given(lengths_of_sentences, st.integers(5, 64), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_rows_are_as_full_as_whole_sentences_allow(sentence_lengths, max_seq_length, seed):
    """Compares with a simple implementation, with documents in the order that was drawn."""
    max_tokens = max_seq_length - 2
    documents = documents_of(sentence_lengths)
    rows, _ = rows_of(sentence_lengths, max_seq_length, 0.0, seed)
    document_starts = documents.sentence_starts[documents.document_starts[:-1]].tolist()
    order = [start for row in rows for start, _ in row if start in document_starts]

    expected, room = [], 0
    for document_start in order:
        number = document_starts.index(document_start)
        at, is_new = document_start, True
        for length in sentence_lengths[number]:
            for begin in range(0, length, max_tokens):
                size = min(max_tokens, length - begin)
                between = 1 if is_new else 0  # the [SEP] after the previous document
                if size + between > room or not expected:
                    expected.append([[at, at + size]])
                    room = max_tokens - size
                elif is_new:
                    expected[-1].append([at, at + size])
                    room -= size + 1
                else:
                    expected[-1][-1][1] += size
                    room -= size
                at += size
                is_new = False
    assert rows == expected


def test_every_order_of_documents_is_equally_likely():
    firsts = [rows_of([[30]] * 4, 32, 0.0, seed)[0] for seed in range(2400)]
    orders = [tuple(row[0][0] // 30 for row in rows) for rows in firsts]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


def test_short_target_length_is_drawn_for_each_row():
    rows, lengths = rows_of([[1] * 60000], 32, 0.3, 0)
    counts = np.bincount(lengths[:-1] - 2, minlength=31)  # the last row holds the rest
    expected = np.full(29, 0.3 / 29)  # targets from 2 to 30
    expected[-1] += 0.7
    assert not counts[:2].any()
    assert stats.chisquare(counts[2:], expected * counts.sum()).pvalue > 1e-4
    assert len(rows) > 2000


# --- rows of several examples ---


def pack(lengths, most=20, max_seq_length=128, seed=0):
    lengths = np.array(lengths, np.int64)
    budget = num_to_predict(lengths, 0.15, most)
    order, starts = pack_examples(
        lengths, budget, max_seq_length, most, np.random.default_rng(seed)
    )
    return lengths, budget, order, starts


@given(st.lists(st.integers(4, 64), max_size=300), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_rows_respect_their_limits_and_no_example_is_lost(lengths, most):
    lengths, budget, order, starts = pack(lengths, most, 64)
    assert sorted(order) == list(range(len(lengths)))
    assert (np.diff(starts) > 0).all()
    assert starts[0] == 0
    assert starts[-1] == len(lengths)
    for a, b in itertools.pairwise(starts):
        assert lengths[order[a:b]].sum() <= 64
        assert budget[order[a:b]].sum() <= most


def test_examples_are_packed_within_a_window_and_rows_are_shuffled():
    lengths = np.random.default_rng(3).integers(8, 40, 20 * WINDOW)
    _, _, order, starts = pack(lengths)
    window = order // WINDOW
    of_row = window[starts[:-1]]
    np.testing.assert_array_equal(np.repeat(of_row, np.diff(starts)), window)
    # Rows are sorted neither by their window nor by the length of their examples.
    place = np.arange(len(of_row))
    longest = np.maximum.reduceat(lengths[order], starts[:-1])
    for values in (of_row, longest):
        assert abs(np.corrcoef(place, values)[0, 1]) < 4 / np.sqrt(len(place))
