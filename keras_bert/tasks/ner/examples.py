"""Prepares sentences of words for a tagger: training examples, and predicted tags."""

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

# Sentences are short, so starting the operations takes most of the time of a small chunk.
CHUNK_SIZE = 8192


def prepare_sentences(
    processor: TaggingProcessor,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None = None,
) -> Prepared:
    """Arranges sentences in windows.

    Args:
        processor: the tagger's.
        sentences: the words of each.
        documents: as for `TaggingProcessor.preprocess_words`.

    Returns:
        The windows, in order.
    """
    if documents is None:
        return prepare(processor.preprocess_words, [sentences], CHUNK_SIZE)

    def preprocess(words: tf.RaggedTensor) -> WordWindows:
        return processor.preprocess_words(words, tf.constant(documents, tf.int64))

    # One chunk: a document may be of any length.
    return prepare(preprocess, [sentences], max(len(sentences), 1))


def prepare_texts(
    processor: TaggingProcessor, texts: Sequence[str]
) -> tuple[Prepared, list[list[tuple[int, int]]]]:
    """Splits texts into words and arranges them in windows.

    Args:
        processor: the tagger's.
        texts: n texts.

    Returns:
        The windows, as of `prepare_sentences`; and for each text the first character of each word
        and the one after its last.
    """
    prepared = prepare(processor.preprocess, [texts])
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
    """Adds the labels that training needs.

    Args:
        prepared: N words, from `prepare_sentences`.
        tag_ids: int32 [N].
        label_all_tokens: every token of a word carries its tag, not only the first one.

    Returns:
        The windows with "tags" for each token; -1 where it has none.
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
    """Decodes the tags of words.

    Args:
        processor: the one that prepared the words.
        prepared: from `prepare_sentences`.
        outputs: {"logits": float32 [T, C]}, in the order of `prepared.examples.input_ids`.

    Returns:
        The IOB2 tags of each sentence.
    """
    return [
        decode_texts(tags).tolist()
        for answers in decoded(processor, prepared, outputs)
        for tags in answers["tags"]
    ]
