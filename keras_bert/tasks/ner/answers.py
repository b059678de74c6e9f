"""Converts the outputs of a tagger or of its export to Python lists without padding."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.tasks.exported import Serve
from keras_bert.text.strings import encode_texts

Answers = Mapping[str, np.ndarray]


def listed_entities(texts: Sequence[str], chunks: Iterable[Answers]) -> dict[str, list[list[Any]]]:
    """Converts answers to lists: {"types", "texts", "starts", "ends", "scores": one list per text}.

    The list of a text has one value per entity.

    `chunks` are the answers for consecutive `texts`, as returned by `TaggingProcessor.decode` or by
    the export. Entities with the start -1 are padding.
    """
    found = {name: [] for name in ("types", "texts", "starts", "ends", "scores")}
    for chunk in chunks:
        columns = (chunk[name] for name in ("types", "starts", "ends", "scores"))
        for types, starts, ends, scores in zip(*columns, strict=True):
            text, real = texts[len(found["texts"])], starts >= 0
            spans = list(zip(starts[real].tolist(), ends[real].tolist(), strict=True))
            found["types"].append([kind.decode() for kind in types[real]])
            found["texts"].append([text[start:end] for start, end in spans])
            found["starts"].append([start for start, _ in spans])
            found["ends"].append([end for _, end in spans])
            found["scores"].append(scores[real].tolist())
    return {name: rows[: len(texts)] for name, rows in found.items()}


def listed_tags(
    sentences: Sequence[Sequence[str]], chunks: Iterable[Answers]
) -> dict[str, list[list[Any]]]:
    """Converts answers to lists: {"tags", "scores": one list per sentence, one value per word}.

    `chunks` are the answers for consecutive `sentences`, with or without padding after the last
    word.
    """
    found = {"tags": [], "scores": []}
    for chunk in chunks:
        for tags, scores in zip(chunk["tags"], chunk["scores"], strict=True):
            count = len(sentences[len(found["tags"])])
            found["tags"].append([tag.decode() for tag in tags[:count]])
            found["scores"].append(scores[:count].tolist())
    return found


def served_tags(
    serve: Serve, sentences: Sequence[Sequence[str]], batch_size: int
) -> Iterator[Answers]:
    """Yields the outputs of an exported model's `words` signature, one batch at a time.

    `serve` is the signature, and `batch_size` the number of sentences per batch.
    """
    for start in range(0, len(sentences), batch_size):
        some = sentences[start : start + batch_size]
        padded = np.full([len(some), max(map(len, some))], b"", object)
        for row, words in zip(padded, some, strict=True):
            row[: len(words)] = encode_texts(words)
        outputs = serve(words=tf.constant(padded, tf.string))
        yield {name: value.numpy() for name, value in outputs.items()}
