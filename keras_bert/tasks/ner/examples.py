"""Converts sentences to training examples of a tagger, and logits to predicted tags."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.ner.processor import TaggingProcessor
from keras_bert.tasks.ner.word_windows import WordWindows, token_labels
from keras_bert.tasks.prepared import Prepared, decoded, prepare
from keras_bert.text.strings import decode_texts

# Number of sentences per chunk. In small chunks of short sentences, overhead would dominate.
CHUNK_SIZE = 8192


def prepare_sentences(
    processor: TaggingProcessor,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None = None,
) -> Prepared:
    """Splits sentences, given as lists of words, into windows.

    `documents` has the index of each sentence's document, and extends the windows with words of the
    neighboring sentences of the document. None means no document context.
    """
    tokenizer = processor.tokenizer
    if documents is None:
        return prepare(processor.preprocess_words, [sentences], CHUNK_SIZE, tokenizer=tokenizer)

    def preprocess(words: tf.RaggedTensor) -> WordWindows:
        return processor.preprocess_words(words, tf.constant(documents, tf.int64))

    # Use a single chunk, since a document may have any length.
    return prepare(preprocess, [sentences], chunk_size=None, tokenizer=tokenizer)


def prepare_texts(
    processor: TaggingProcessor, texts: Sequence[str]
) -> tuple[Prepared, list[list[tuple[int, int]]]]:
    """Splits texts into windows.

    Returns:
        The windows; and for each text, the (start, end) character offsets of its words.
    """
    prepared = prepare(processor.preprocess, [texts], tokenizer=processor.tokenizer)
    chunks, words = [], []
    for chunk in prepared.chunks:
        windows, spans = chunk.inputs.windows, chunk.inputs.spans
        chunks.append(replace(chunk, inputs=windows))
        places = list(zip(spans.starts.numpy().tolist(), spans.ends.numpy().tolist(), strict=True))
        words += [places[first:last] for first, last in pairwise(windows.row_splits.numpy())]
    return replace(prepared, chunks=chunks), words


def tagged_examples(
    prepared: Prepared, tag_ids: np.ndarray, label_all_tokens: bool = False
) -> Examples:
    """Creates training examples from windows, with a label "tags" for each token.

    `tag_ids`, int32 [N], are the labels of the words of all sentences. The label of a word is
    assigned to its first token, or to all of its tokens with `label_all_tokens`. Tokens without a
    label have -1.
    """
    labels, start = [np.zeros([0], np.int32)], 0
    for chunk in prepared.chunks:
        windows = chunk.inputs
        end = start + len(windows.word_places)
        labels.append(token_labels(windows, tag_ids[start:end], label_all_tokens).numpy())
        start = end
    return replace(prepared.examples, token_labels={"tags": np.concatenate(labels)})


def predicted_tags(
    processor: TaggingProcessor, prepared: Prepared, outputs: Mapping[str, np.ndarray]
) -> list[list[str]]:
    """Decodes the model's outputs for `prepared` into a list of IOB2 tags for each sentence."""
    return [
        decode_texts(tags).tolist()
        for answers in decoded(processor, prepared, outputs)
        for tags in answers["tags"]
    ]
