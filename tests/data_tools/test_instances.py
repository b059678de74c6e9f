"""Next-sentence pairs, fact by fact (FACTS: pre-training data)."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from data_tools.instances import (
    A_END,
    A_START,
    B_END,
    B_START,
    IS_RANDOM,
    Documents,
    assemble,
    make_pairs,
    truncate_pairs,
)

NEXT, RANDOM = 0, 1


def documents_of(sentence_lengths: list[list[int]]) -> Documents:
    """Documents with sentences of these lengths; every piece has an id of its own."""
    lengths = [length for document in sentence_lengths for length in document]
    return Documents(
        ids=np.arange(sum(lengths), dtype=np.int32),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        document_starts=np.cumsum([0, *map(len, sentence_lengths)]).astype(np.int64),
    )


corpora = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=2, max_size=8
).map(documents_of)


def spread(num_documents: int, num_sentences: int, seed: int = 0) -> Documents:
    rng = np.random.default_rng(seed)
    return documents_of(rng.integers(3, 30, (num_documents, num_sentences)).tolist())


def document_of(documents: Documents, piece: np.ndarray) -> np.ndarray:
    sentence = np.searchsorted(documents.sentence_starts, piece, "right") - 1
    return np.searchsorted(documents.document_starts, sentence, "right") - 1


@given(corpora, st.integers(5, 64), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_unused_sentences_are_put_back(documents, max_seq_length, short_seq_prob, seed):
    """Read as A, or as A and the true B, every document is covered once, with no gap."""
    pairs = make_pairs(documents, max_seq_length, short_seq_prob, random.Random(seed))
    at = 0
    for a_start, a_end, b_start, b_end, is_random in pairs.tolist():
        assert a_start == at
        at = a_end
        if not is_random:
            assert b_start == at  # B goes on where A ends
            at = b_end
    assert at == len(documents.ids)


@given(corpora, st.integers(5, 64), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_both_halves_are_whole_sentences_of_one_document(documents, max_seq_length, seed):
    pairs = make_pairs(documents, max_seq_length, 0.1, random.Random(seed))
    assert np.isin(pairs[:, :4], documents.sentence_starts).all()
    for start, end in ((A_START, A_END), (B_START, B_END)):
        assert (pairs[:, start] < pairs[:, end]).all()
        of_first = document_of(documents, pairs[:, start])
        np.testing.assert_array_equal(of_first, document_of(documents, pairs[:, end] - 1))


@given(corpora, st.integers(5, 64), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_a_chunk_ends_with_the_sentence_that_reaches_the_target(documents, max_seq_length, seed):
    pairs = make_pairs(documents, max_seq_length, 0.0, random.Random(seed))
    target = max_seq_length - 3
    document_ends = documents.sentence_starts[documents.document_starts[1:]]
    for a_start, a_end, b_start, b_end, is_random in pairs.tolist():
        # The sentence that ends B begins below the target; B stops there or with its document.
        last = documents.sentence_starts[np.searchsorted(documents.sentence_starts, b_end) - 1]
        length_before_last = a_end - a_start + last - b_start
        assert length_before_last < target or (is_random and last == b_start)
        assert a_end - a_start + b_end - b_start >= target or b_end in document_ends


def test_half_of_the_pairs_are_random_and_lone_sentences_always():
    documents = spread(50, 400)
    pairs = make_pairs(documents, 128, 0.0, random.Random(1))
    # All chunks have several sentences but some at the documents' ends.
    ends = np.isin(pairs[:, A_END], documents.sentence_starts[documents.document_starts[1:]])
    inner = pairs[~ends]
    test = stats.binomtest(int(inner[:, IS_RANDOM].sum()), len(inner), 0.5)
    assert len(inner) > 2000
    assert test.pvalue > 1e-4

    long_sentences = documents_of([[200] * 20] * 5)
    assert make_pairs(long_sentences, 128, 0.0, random.Random(1))[:, IS_RANDOM].all()


def test_a_random_b_comes_from_another_document():
    documents = spread(20, 100)
    pairs = make_pairs(documents, 64, 0.1, random.Random(2))
    pairs = pairs[pairs[:, IS_RANDOM] == RANDOM]
    a, b = (document_of(documents, pairs[:, column]) for column in (A_START, B_START))
    assert (a != b).all()
    # ... and from every other one alike, from any of its sentences on.
    assert stats.chisquare(np.bincount(b, minlength=20)).pvalue > 1e-4
    sentence = np.searchsorted(documents.sentence_starts, pairs[:, B_START]) % 100
    assert stats.chisquare(np.bincount(sentence, minlength=100)).pvalue > 1e-4


def test_a_random_b_comes_from_the_same_document_after_ten_draws():
    pairs = make_pairs(documents_of([[10] * 50]), 32, 0.0, random.Random(3))
    assert pairs[:, IS_RANDOM].any()


def test_a_has_any_number_of_a_chunks_sentences_but_all():
    """a_end = randint(1, len(chunk) - 1): with 12 sentences of 10 pieces, 1 to 11 alike."""
    documents = documents_of([[10] * 12] * 6000)
    pairs = make_pairs(documents, 120 + 3, 0.0, random.Random(4))
    is_first = np.isin(pairs[:, A_START], documents.sentence_starts[documents.document_starts])
    a_sentences = (pairs[is_first, A_END] - pairs[is_first, A_START]) // 10
    assert a_sentences.min() == 1
    assert a_sentences.max() == 11
    assert stats.chisquare(np.bincount(a_sentences)[1:]).pvalue > 1e-4


def test_the_target_is_drawn_once_a_document_uniform_from_2():
    """With sentences of one piece a true pair is exactly its target long."""
    max_num_tokens = 32
    documents = documents_of([[1] * 400] * 3000)
    pairs = make_pairs(documents, max_num_tokens + 3, 0.1, random.Random(5))
    document_ends = documents.sentence_starts[documents.document_starts[1:]]
    true_next = pairs[(pairs[:, IS_RANDOM] == NEXT) & ~np.isin(pairs[:, B_END], document_ends)]
    length = true_next[:, B_END] - true_next[:, A_START]
    document = document_of(documents, true_next[:, A_START])
    targets = []
    for number in range(3000):
        of_document = np.unique(length[document == number])
        assert len(of_document) == 1
        targets.append(of_document[0])
    counts = np.bincount(targets, minlength=max_num_tokens + 1)
    assert counts[:2].sum() == 0
    expected = np.full(max_num_tokens - 1, 0.1 / (max_num_tokens - 1))
    expected[-1] += 0.9
    assert stats.chisquare(counts[2:], 3000 * expected).pvalue > 1e-4


def reference_truncation(a_length: int, b_length: int, most: int) -> tuple[int, int]:
    while a_length + b_length > most:
        if a_length > b_length:
            a_length -= 1
        else:
            b_length -= 1
    return a_length, b_length


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 125), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_the_longer_half_is_cut_and_ties_cut_b(a_length, b_length, most, seed):
    pairs = np.array([[1000, 1000 + a_length, 5000, 5000 + b_length, RANDOM]])
    cut = truncate_pairs(pairs, most, np.random.default_rng(seed))[0]
    lengths = (cut[A_END] - cut[A_START], cut[B_END] - cut[B_START])
    assert lengths == reference_truncation(a_length, b_length, most)
    assert 1000 <= cut[A_START] < cut[A_END] <= 1000 + a_length
    assert 5000 <= cut[B_START] < cut[B_END] <= 5000 + b_length
    assert cut[IS_RANDOM] == RANDOM


def test_a_coin_decides_at_which_end_a_piece_goes():
    pairs = np.tile([0, 70, 100, 160, NEXT], (4000, 1))  # A loses 18, B 8
    cut = truncate_pairs(pairs, 104, np.random.default_rng(6))
    for column, removed in ((A_START, 18), (B_START, 8)):
        at_the_front = np.bincount(cut[:, column] - pairs[:, column], minlength=removed + 1)
        expected = 4000 * stats.binom.pmf(np.arange(removed + 1), removed, 0.5)
        often = expected > 5
        seen, wanted = at_the_front[often], expected[often]
        assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4


def test_pairs_that_fit_stay_whole():
    pairs = np.array([[0, 50, 60, 135, NEXT]])
    np.testing.assert_array_equal(truncate_pairs(pairs, 125, np.random.default_rng(0)), pairs)


def test_layout_of_an_example():
    pairs = np.array([[0, 2, 5, 8, NEXT], [3, 4, 0, 1, RANDOM]])
    features = assemble(np.arange(10, 20, dtype=np.int32), pairs, 10, cls_id=1, sep_id=2, pad_id=0)
    expected = {
        "input_ids": [[1, 10, 11, 2, 15, 16, 17, 2, 0, 0], [1, 13, 2, 10, 2, 0, 0, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]],
        "segment_ids": [[0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]],
        "is_text": [[0, 1, 1, 0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]],
        "next_sentence_labels": [[0], [1]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(features[name], values, err_msg=name)


def test_a_full_example_has_no_padding():
    pairs = np.array([[0, 3, 4, 8, NEXT]])
    features = assemble(np.arange(10, 20, dtype=np.int32), pairs, 10, cls_id=1, sep_id=2, pad_id=0)
    assert features["input_ids"].tolist() == [[1, 10, 11, 12, 2, 14, 15, 16, 17, 2]]
    assert features["input_mask"].all()


@pytest.mark.parametrize("lengths", [[[5]], [[5], [7]]])
def test_a_document_of_one_sentence_gives_one_random_pair(lengths):
    pairs = make_pairs(documents_of(lengths), 128, 0.0, random.Random(0))
    assert len(pairs) == len(lengths)
    assert pairs[:, IS_RANDOM].all()
