"""Tests of rows of full sentences (RoBERTa, section 4.2)."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from data_tools.examples.full_sentences import make_full_sentences
from data_tools.examples.instances import Documents


def documents_of(sentence_lengths: list[list[int]]) -> Documents:
    """Returns documents with sentences of the given lengths; all token ids are different."""
    lengths = [length for document in sentence_lengths for length in document]
    return Documents(
        ids=np.arange(sum(lengths), dtype=np.int32),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        document_starts=np.cumsum([0, *map(len, sentence_lengths)]).astype(np.int64),
    )


def rows_of(sentence_lengths, max_seq_length, short_seq_prob, seed):
    """Returns the rows as lists of (start, end), and their lengths."""
    rng = np.random.default_rng(seed)
    examples = make_full_sentences(
        documents_of(sentence_lengths), max_seq_length, short_seq_prob, rng
    )
    assert not examples.labels.any()
    parts, starts = examples.parts.tolist(), examples.first_part.tolist()
    return [parts[a:b] for a, b in itertools.pairwise(starts)], examples.lengths()


corpora = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=20), min_size=1, max_size=8)


@pytest.mark.slow
@given(corpora, st.integers(5, 64), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_every_token_is_in_one_row_and_no_row_is_too_long(
    sentence_lengths, max_seq_length, short_seq_prob, seed
):
    rows, lengths = rows_of(sentence_lengths, max_seq_length, short_seq_prob, seed)
    tokens = [token for row in rows for start, end in row for token in range(start, end)]
    assert sorted(tokens) == list(range(sum(map(sum, sentence_lengths))))
    assert lengths.max() <= max_seq_length
    for row, length in zip(rows, lengths, strict=True):
        # A row is [CLS] and its parts, each followed by [SEP].
        assert length == 1 + sum(end - start + 1 for start, end in row)


@given(corpora, st.integers(5, 64), st.integers(0, 99))
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


@pytest.mark.parametrize("seed", range(5))
def test_sentence_longer_than_a_row_is_split_across_rows(seed):
    rows, _ = rows_of([[5, 70, 4, 3]], 32, 0.0, seed)
    assert rows == [[[0, 5]], [[5, 35]], [[35, 65]], [[65, 82]]]


def test_no_documents_give_no_rows():
    assert rows_of([], 32, 0.1, 0)[0] == []
