"""Fills rows with consecutive sentences of tokenized documents.

In: `Documents`. Out: `ExampleSpans` of one part or more, all labelled 0: next_sentence=none, as in
RoBERTa (Liu et al. 2019, section 4.2, FULL-SENTENCES).

The documents stand one after the other in random order, a [SEP] between them. Rows are cut from
this stream at sentence ends; a sentence longer than a row is cut beforehand into parts that fit.
"""

import numpy as np

from data_tools.examples.instances import Documents, ExampleSpans, draw_targets, ranges, walk

NUM_SPECIAL_TOKENS = 2  # [CLS] and the last [SEP]


def make_full_sentences(
    documents: Documents, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> ExampleSpans:
    """Walks once through all documents, in an order of its own, and fills rows.

    Args:
        documents: the documents.
        max_seq_length: pieces in a row, with [CLS] and every [SEP].
        short_seq_prob: share of rows whose target length is drawn from [2, max_seq_length - 2].
            A row holds a sentence at least, however low its target.
        rng: the source of every draw.

    Returns:
        The rows in order, a part for each document that a row has a part of.
    """
    most = max_seq_length - NUM_SPECIAL_TOKENS
    source, length, num_sentences = _sentences_in_random_order(documents, most, rng)

    # Where sentences stand in the stream; a document's last one is followed by a [SEP].
    document_end = np.cumsum(num_sentences)
    width = length.copy()
    width[document_end - 1] += 1
    start = np.cumsum(width) - width
    target = draw_targets(len(length), most, short_seq_prob, rng)
    # For a row that starts with each sentence, the first sentence that it has no room for.
    end = np.searchsorted(start + length, start + target, side="right")
    row = walk(np.maximum(end, np.arange(len(length)) + 1))

    # A part starts with its row or with its document.
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
    documents: Documents, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Puts the documents in random order and cuts sentences of more than `most` pieces.

    Args:
        documents: the documents.
        most: the most pieces that a sentence may have.
        rng: the source of every draw.

    Returns:
        source int64 [n], where each sentence starts in the documents' ids; length int64 [n], its
        pieces; num_sentences int64 [number of documents], in the documents' new order.
    """
    document = np.argsort(rng.random(len(documents)), kind="stable")
    num_sentences = np.diff(documents.document_starts)[document]
    sentence = ranges(documents.document_starts[document], num_sentences)
    source = documents.sentence_starts[sentence]
    length = documents.sentence_starts[sentence + 1] - source

    num_parts = -(-length // most)
    total_parts = np.concatenate([[0], np.cumsum(num_parts)])
    number = np.arange(total_parts[-1]) - np.repeat(total_parts[:-1], num_parts)  # of its sentence
    length = np.minimum(np.repeat(length, num_parts) - number * most, most)
    source = np.repeat(source, num_parts) + number * most
    document_ends = np.concatenate([[0], np.cumsum(num_sentences)])
    return source, length, np.diff(total_parts[document_ends])
