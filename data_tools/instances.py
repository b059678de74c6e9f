"""Next-sentence prediction: documents of word pieces in, sentence pairs out.

In: documents as three flat arrays (`Documents`). Out: an int64 array of pairs [n, 5], a row
(a_start, a_end, b_start, b_end, is_random): the pieces of A are ids[a_start:a_end], those of B
ids[b_start:b_end]. A pair is so small because both of its halves lie in one piece in the documents;
the pieces are gathered a batch at a time (`assemble`) when the masks are drawn.

The algorithm is BERT's (Devlin et al. 2019, section 3.1 and appendix A.2; the released
create_pretraining_data): sentences are collected until a target length, A is a random number of
them, B is the rest or, half of the time, a stretch of another document.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

A_START, A_END, B_START, B_END, IS_RANDOM = range(5)

NUM_SPECIAL_TOKENS = 3  # [CLS] and both [SEP]


@dataclass(frozen=True)
class Documents:
    """Tokenized documents, as flat arrays.

    Attributes:
        ids: int32 [T], the word pieces of all documents, one after the other.
        sentence_starts: int64 [number of sentences + 1], where each sentence starts in `ids`, and
            T at the end. No sentence is empty.
        document_starts: int64 [number of documents + 1], where each document starts among the
            sentences, and their number at the end. No document is empty.
    """

    ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.document_starts) - 1


def make_pairs(
    documents: Documents, max_seq_length: int, short_seq_prob: float, rng: random.Random
) -> np.ndarray:
    """Walks once through every document and makes its sentence pairs, not yet cut to length.

    Args:
        documents: the documents; random halves come from these.
        max_seq_length: pieces in an example, with [CLS] and both [SEP].
        short_seq_prob: share of documents whose target length is drawn from [2, max_seq_length-3].
        rng: the source of every draw.

    Returns:
        int64 [n, 5], the documents' pairs in order.
    """
    max_num_tokens = max_seq_length - NUM_SPECIAL_TOKENS
    # Plain lists: Python's bisect and indexing on them beat NumPy's a single item at a time.
    sentence_starts = documents.sentence_starts.tolist()
    document_starts = documents.document_starts.tolist()
    pairs: list[tuple[int, int, int, int, bool]] = []
    for document in range(len(documents)):
        target = max_num_tokens
        if rng.random() < short_seq_prob:
            target = _randint(rng, 2, max_num_tokens)
        pairs += _document_pairs(document, sentence_starts, document_starts, target, rng)
    return np.array(pairs, np.int64).reshape(-1, 5)


def _document_pairs(
    document: int,
    sentence_starts: list[int],
    document_starts: list[int],
    target: int,
    rng: random.Random,
) -> list[tuple[int, int, int, int, bool]]:
    pairs = []
    first, document_end = document_starts[document], document_starts[document + 1]
    while first < document_end:
        # The chunk [first, end): sentences until the target is reached or the document ends.
        end = bisect_left(sentence_starts, sentence_starts[first] + target, first + 1, document_end)
        chunk_length = end - first
        a_end = first + (_randint(rng, 1, chunk_length - 1) if chunk_length > 1 else 1)
        a_range = (sentence_starts[first], sentence_starts[a_end])
        if chunk_length == 1 or rng.random() < 0.5:
            b_target = target - (a_range[1] - a_range[0])
            other = _other_document(document, len(document_starts) - 1, rng)
            other_end = document_starts[other + 1]
            b_first = _randint(rng, document_starts[other], other_end - 1)
            # At least one sentence, even when A alone reached the target.
            b_end = bisect_left(
                sentence_starts, sentence_starts[b_first] + b_target, b_first + 1, other_end
            )
            pairs.append((*a_range, sentence_starts[b_first], sentence_starts[b_end], True))
            first = a_end  # the chunk's other sentences were not used: they go back
        else:
            pairs.append((*a_range, sentence_starts[a_end], sentence_starts[end], False))
            first = end
    return pairs


def _other_document(document: int, num_documents: int, rng: random.Random) -> int:
    """Draws a document other than `document`, giving up after 10 draws as BERT does."""
    other = document
    for _ in range(10):
        other = _randint(rng, 0, num_documents - 1)
        if other != document:
            break
    return other


def _randint(rng: random.Random, low: int, high: int) -> int:
    """Draws from [low, high]. Unlike Random.randint, the same for every version of Python."""
    return low + int(rng.random() * (high - low + 1))


def truncate_pairs(pairs: np.ndarray, max_num_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Cuts pairs to length, piece by piece from the longer half (ties: B), the end by coin.

    How many pieces each half loses follows from the lengths alone, so the coins for a half are one
    binomial draw: how many of its pieces go at the front.

    Args:
        pairs: int64 [n, 5] of `make_pairs`.
        max_num_tokens: most pieces that A and B may have together.
        rng: the source of the coins.

    Returns:
        int64 [n, 5], new pairs.
    """
    a_length = pairs[:, A_END] - pairs[:, A_START]
    b_length = pairs[:, B_END] - pairs[:, B_START]
    excess = np.maximum(a_length + b_length - max_num_tokens, 0)
    # First the longer half shrinks to the other's length, then they take turns, B first.
    a_cut = np.minimum(np.maximum(a_length - b_length, 0), excess)
    b_cut = np.minimum(np.maximum(b_length - a_length, 0), excess)
    in_turns = excess - a_cut - b_cut
    a_cut += in_turns // 2
    b_cut += in_turns - in_turns // 2

    a_front, b_front = rng.binomial(a_cut, 0.5), rng.binomial(b_cut, 0.5)
    cut = pairs.copy()
    cut[:, A_START] += a_front
    cut[:, A_END] -= a_cut - a_front
    cut[:, B_START] += b_front
    cut[:, B_END] -= b_cut - b_front
    return cut


def assemble(
    ids: np.ndarray, pairs: np.ndarray, max_seq_length: int, cls_id: int, sep_id: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Lays out pairs as `[CLS] A [SEP] B [SEP]`, padded.

    Args:
        ids: int32 [T], the documents' pieces.
        pairs: int64 [n, 5], already cut to max_seq_length - 3 pieces.
        max_seq_length: S.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        pad_id: id of [PAD].

    Returns:
        input_ids, input_mask, segment_ids int32 [n, S]; is_text bool [n, S], true where a piece
        of A or B stands; next_sentence_labels int32 [n, 1] (0 is the next, 1 is random).
    """
    a_length = (pairs[:, A_END] - pairs[:, A_START])[:, None]
    b_length = (pairs[:, B_END] - pairs[:, B_START])[:, None]
    column = np.arange(max_seq_length)[None, :]
    b_column = a_length + 2  # where B begins
    length = a_length + b_length + NUM_SPECIAL_TOKENS
    in_a = (column >= 1) & (column <= a_length)
    in_b = (column >= b_column) & (column < length - 1)
    is_text = in_a | in_b

    source = np.where(
        in_b, pairs[:, [B_START]] + column - b_column, pairs[:, [A_START]] + column - 1
    )
    input_ids = np.full(is_text.shape, pad_id, np.int32)
    input_ids[is_text] = ids[source[is_text]]
    input_ids[:, 0] = cls_id
    rows = np.arange(len(pairs))
    input_ids[rows, a_length[:, 0] + 1] = sep_id
    input_ids[rows, length[:, 0] - 1] = sep_id
    return {
        "input_ids": input_ids,
        "input_mask": (column < length).astype(np.int32),
        "segment_ids": ((column >= b_column) & (column < length)).astype(np.int32),
        "is_text": is_text,
        "next_sentence_labels": pairs[:, [IS_RANDOM]].astype(np.int32),
    }
