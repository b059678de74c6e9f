"""Fills rows with consecutive sentences of tokenized documents (next_sentence=none).

This is FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2). The documents are concatenated in
random order with a [SEP] between them, and this stream is split into rows at sentence ends. A
sentence longer than a row is first split into parts that fit. All examples have the label 0.
"""

import numpy as np

from data_tools.examples.instances import Documents, ExampleSpans, ranges, sample_targets, walk

NUM_SPECIAL_TOKENS = 2  # [CLS] and the last [SEP]


def make_full_sentences(
    documents: Documents, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> ExampleSpans:
    """Fills rows with the sentences of all documents, each used once, in a random document order.

    A row has up to S = `max_seq_length` tokens, including [CLS] and every [SEP], and at least one
    sentence. With probability `short_seq_prob`, its target length is drawn from [2, S - 2]. Returns
    one example per row, with one part for each document in the row.
    """
    max_tokens = max_seq_length - NUM_SPECIAL_TOKENS
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
