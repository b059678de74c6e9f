"""Creates examples from tokenized documents: next-sentence pairs, or full sentences without pairs.

    pairs int64 [n, 5]: a_start, a_end, b_start, b_end, label
    segment A is ids[a_start:a_end], segment B is ids[b_start:b_end] (`Documents`)

For speed, no Python loop creates chunks: all random draws are made at once, for a chunk starting at
every sentence, and `walk` then selects the chunks that follow one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

A_START, A_END, B_START, B_END, LABEL = range(5)

NUM_SPECIAL_TOKENS = 3  # [CLS] and both [SEP]


@dataclass(frozen=True)
class Documents:
    """Tokenized documents as flat arrays. No document and no sentence is empty.

    Attributes:
        ids: int32 [T], the token ids of all documents, concatenated.
        sentence_starts: int64 [number of sentences + 1], the start of each sentence in `ids`, then
            T.
        document_starts: int64 [number of documents + 1], the first sentence of each document, then
            the number of sentences.
    """

    ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.document_starts) - 1


@dataclass(frozen=True)
class ExampleSpans:
    """Examples `[CLS] part [SEP] part [SEP] ...`, whose parts are spans of the documents.

    Attributes:
        parts: int64 [m, 2], (start, end) of each part in the documents' ids.
        first_part: int64 [n + 1], the first part of each example; the last value is m.
        labels: int64 [n], the next-sentence labels.
    """

    parts: np.ndarray
    first_part: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of_pairs(cls, pairs: np.ndarray) -> "ExampleSpans":
        """Converts pairs, int64 [n, 5], to examples of two parts."""
        first_part = np.arange(0, 2 * len(pairs) + 1, 2)
        return cls(pairs[:, :LABEL].reshape(-1, 2), first_part, pairs[:, LABEL])

    @classmethod
    def concatenate(cls, several: Sequence["ExampleSpans"]) -> "ExampleSpans":
        """Concatenates examples of the same documents."""
        offsets = np.cumsum([0, *(len(examples.parts) for examples in several)])
        first_parts = [
            examples.first_part[:-1] + offset
            for examples, offset in zip(several, offsets, strict=False)
        ]
        return cls(
            np.concatenate([examples.parts for examples in several]),
            np.concatenate([*first_parts, offsets[-1:]]),
            np.concatenate([examples.labels for examples in several]),
        )

    def lengths(self) -> np.ndarray:
        """Returns the number of tokens in each example, int64 [n], including special tokens."""
        ends = np.concatenate([[0], np.cumsum(self.parts[:, 1] - self.parts[:, 0] + 1)])
        return np.diff(ends[self.first_part]) + 1

    def take(self, chosen: np.ndarray) -> "ExampleSpans":
        """Returns the examples with the given indices, in that order."""
        num_parts = np.diff(self.first_part)[chosen]
        return ExampleSpans(
            self.parts[ranges(self.first_part[chosen], num_parts)],
            np.concatenate([[0], np.cumsum(num_parts)]),
            self.labels[chosen],
        )


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the ranges [start, start + length) of all starts and lengths, int64 [n] each."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total)


def walk(following: np.ndarray) -> np.ndarray:
    """Follows an array of next indices, int64 [n], from 0 until n; returns the visited indices."""
    after = following.tolist()  # a list step takes 50 ns, an array step three times that
    visited = []
    at = 0
    while at < len(after):
        visited.append(at)
        at = after[at]
    return np.array(visited, np.int64)


# --- next-sentence pairs ---


def make_pairs(
    documents: Documents,
    max_seq_length: int,
    short_seq_prob: float,
    next_sentence: str,
    rng: np.random.Generator,
) -> np.ndarray:
    """Creates the sentence pairs of all documents, not yet truncated.

    next_sentence=random follows BERT (Devlin et al. 2019, section 3.1 and appendix A.2; the
    released create_pretraining_data): sentences are collected up to a target length, as a chunk. A
    is a random number of them. B is the rest or, half of the time, a span of another document.
    next_sentence=order follows ALBERT (Lan et al. 2020, section 3.1): B is always the rest, and
    half of the time A and B are swapped.

    `max_seq_length` counts [CLS] and both [SEP]. With probability `short_seq_prob`, the target
    length of a document is drawn from [2, max_seq_length - 3]. `next_sentence` is "random" or
    "order".
    """
    starts = documents.sentence_starts
    document = np.repeat(np.arange(len(documents)), np.diff(documents.document_starts))
    target = sample_targets(
        len(documents), max_seq_length - NUM_SPECIAL_TOKENS, short_seq_prob, rng
    )[document]
    # The chunk [first, end): sentences until the target is reached or the document ends.
    first = np.arange(len(document))
    end = np.searchsorted(starts, starts[:-1] + target)
    end = np.minimum(end, documents.document_starts[1:][document])
    a_end = first + 1 + _below(end - first - 1, rng)
    if next_sentence == "order":
        return _order_pairs(starts, walk(end), a_end, end, rng)

    is_random = (end - first == 1) | (rng.random(len(first)) < 0.5)
    # If B is random, the sentences of the chunk after A are unused: the next chunk starts there.
    used = walk(np.where(is_random, a_end, end))
    first, a_end, end, is_random = used, a_end[used], end[used], is_random[used]
    pairs = np.stack([starts[first], starts[a_end], starts[a_end], starts[end], is_random], axis=1)
    at = np.flatnonzero(is_random)
    b_target = target[first[at]] - (pairs[at, A_END] - pairs[at, A_START])
    pairs[at, B_START], pairs[at, B_END] = _random_halves(
        documents, document[first[at]], b_target, rng
    )
    return pairs


def _random_halves(
    documents: Documents, document: np.ndarray, target: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a random B for each A; returns b_start and b_end, int64 [n] each.

    `document`, int64 [n], is the index of the document of A. B consists of consecutive sentences of
    another document, starting with a random one. It has about `target` tokens, int64 [n], and at
    least one sentence.
    """
    other = document
    for _ in range(10):  # after 10 attempts, accept the same document, as in BERT
        again = np.flatnonzero(other == document)
        if not len(again):
            break
        other = other.copy()
        other[again] = _below(np.full(len(again), len(documents)), rng)
    begin, end = documents.document_starts[other], documents.document_starts[other + 1]
    first = begin + _below(end - begin, rng)
    b_start = documents.sentence_starts[first]
    last = np.searchsorted(documents.sentence_starts, b_start + target)
    return b_start, documents.sentence_starts[np.clip(last, first + 1, end)]


def _order_pairs(
    starts: np.ndarray,
    first: np.ndarray,
    a_end: np.ndarray,
    end: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Splits chunks into pairs, int64 [n, 5], in order (label 0) or swapped (label 1).

    A chunk of one sentence is split inside the sentence, and skipped if the sentence is a single
    token. `starts` are the `sentence_starts` of the documents, and `first`, int64 [number of
    chunks], is the first sentence of each chunk. For a chunk that starts at each sentence, `a_end`
    and `end`, int64 [number of sentences], are the first sentence after A and after the chunk.
    """
    begin, split, end = starts[first], starts[a_end[first]], starts[end[first]]
    is_one = np.flatnonzero(split == end)
    split[is_one] = begin[is_one] + 1 + _below(end[is_one] - begin[is_one] - 1, rng)
    is_pair = split < end
    begin, split, end = begin[is_pair], split[is_pair], end[is_pair]
    swapped = rng.random(len(begin)) < 0.5
    in_order = np.stack([begin, split, split, end, np.zeros_like(begin)], axis=1)
    in_reverse = np.stack([split, end, begin, split, np.ones_like(begin)], axis=1)
    return np.where(swapped[:, None], in_reverse, in_order)


def sample_targets(
    count: int, longest: int, short_seq_prob: float, rng: np.random.Generator
) -> np.ndarray:
    """Samples target lengths, int64 [count].

    With probability `short_seq_prob`, a target length is drawn uniformly from [2, longest];
    otherwise it is `longest`.
    """
    is_short = rng.random(count) < short_seq_prob
    short = 2 + _below(np.full(count, longest - 1), rng)
    return np.where(is_short, short, longest)


def _below(bounds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws an integer from [0, bound) for each bound, int64 [n]; 0 where the bound is 0."""
    return (rng.random(len(bounds)) * bounds).astype(np.int64)


def truncate_pairs(pairs: np.ndarray, max_num_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Truncates pairs, int64 [n, 5], to `max_num_tokens` tokens of A and B in total.

    As in BERT, tokens are removed from the longer segment (B if both are equal), each from a random
    end. The lengths alone determine how many tokens each segment loses. Therefore, one binomial
    draw per segment decides how many of these tokens are at its start.
    """
    truncated = pairs.copy()
    a_length = pairs[:, A_END] - pairs[:, A_START]
    b_length = pairs[:, B_END] - pairs[:, B_START]
    excess = a_length + b_length - max_num_tokens
    too_long = np.flatnonzero(excess > 0)
    a_length, b_length, excess = a_length[too_long], b_length[too_long], excess[too_long]
    # First the longer segment loses tokens until both are equal, then B and A in turns, B first.
    a_removed = np.minimum(np.maximum(a_length - b_length, 0), excess)
    b_removed = np.minimum(np.maximum(b_length - a_length, 0), excess)
    in_turns = excess - a_removed - b_removed
    a_removed += in_turns // 2
    b_removed += in_turns - in_turns // 2

    a_front, b_front = rng.binomial(a_removed, 0.5), rng.binomial(b_removed, 0.5)
    truncated[too_long, A_START] += a_front
    truncated[too_long, A_END] -= a_removed - a_front
    truncated[too_long, B_START] += b_front
    truncated[too_long, B_END] -= b_removed - b_front
    return truncated


# --- full sentences (next_sentence=none) ---


def make_full_sentences(
    documents: Documents, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> ExampleSpans:
    """Fills rows with the sentences of all documents, each used once, in a random document order.

    This is FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2). The documents are concatenated
    in random order with a [SEP] between them, and this stream is split into rows at sentence ends.
    A sentence longer than a row is first split into parts that fit. All examples have the label 0.

    A row has up to S = `max_seq_length` tokens, including [CLS] and every [SEP], and at least one
    sentence. With probability `short_seq_prob`, its target length is drawn from [2, S - 2]. Returns
    one example per row, with one part for each document in the row.
    """
    max_tokens = max_seq_length - 2  # [CLS] and the last [SEP]
    source, length, num_sentences = _sentences_in_random_order(documents, max_tokens, rng)

    # Positions of the sentences in the stream. A [SEP] follows the last one of each document.
    document_end = np.cumsum(num_sentences)
    width = length.copy()
    width[document_end - 1] += 1
    start = np.cumsum(width) - width
    target = sample_targets(len(length), max_tokens, short_seq_prob, rng)
    # For a row starting at each sentence: the first sentence that does not fit in it.
    end = np.searchsorted(start + length, start + target, side="right")
    row = walk(np.maximum(end, np.arange(len(length)) + 1))

    # A part starts at the start of a row or of a document.
    starts_part = np.zeros(len(length), bool)
    starts_part[row] = True
    starts_part[document_end - num_sentences] = True
    part = np.flatnonzero(starts_part)
    last = np.append(part[1:], len(length))[: len(part)] - 1
    return ExampleSpans(
        parts=np.stack([source[part], source[last] + length[last]], axis=1),
        first_part=np.append(np.searchsorted(part, row), len(part)),
        labels=np.zeros(len(row), np.int64),
    )


def _sentences_in_random_order(
    documents: Documents, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffles the documents and splits sentences of more than `max_tokens` tokens.

    Returns:
        source int64 [n], the start of each sentence in the documents' ids; length int64 [n], the
        number of tokens of each sentence; num_sentences int64 [number of documents], the number of
        sentences of each document, in the new order of the documents.
    """
    document = np.argsort(rng.random(len(documents)), kind="stable")
    num_sentences = np.diff(documents.document_starts)[document]
    sentence = ranges(documents.document_starts[document], num_sentences)
    source = documents.sentence_starts[sentence]
    length = documents.sentence_starts[sentence + 1] - source

    num_parts = -(-length // max_tokens)
    total_parts = np.concatenate([[0], np.cumsum(num_parts)])
    # Index of each part in its sentence.
    number = np.arange(total_parts[-1]) - np.repeat(total_parts[:-1], num_parts)
    length = np.minimum(np.repeat(length, num_parts) - number * max_tokens, max_tokens)
    source = np.repeat(source, num_parts) + number * max_tokens
    document_ends = np.concatenate([[0], np.cumsum(num_sentences)])
    return source, length, np.diff(total_parts[document_ends])
