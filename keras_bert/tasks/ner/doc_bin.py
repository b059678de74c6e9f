"""Reads texts with entities from DocBin files, the training format of spaCy.

The entities are those of `Doc.ents`; the spans of span groups are counted in a warning.
"""

import os
import zlib
from collections import Counter
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.span_records import AnnotatedText, log_unread

ENDING = ".spacy"

_MAX_BYTES = 1 << 30  # decompressed


def read_doc_bin(path: str | os.PathLike) -> list[AnnotatedText]:
    """Reads the texts of a DocBin file.

    Raises:
        InputError: the file is not a DocBin, has no text or is too large, or spacy is not
            installed.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES)
        num_bytes = len(zlib.decompressobj().decompress(content, _MAX_BYTES + 1))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except zlib.error as error:
        raise InputError(f"{path}: is not a DocBin file of spaCy: {error}") from None
    if num_bytes > _MAX_BYTES:
        raise InputError(f"{path}: has more than {_MAX_BYTES} bytes, decompressed; split it")
    try:
        from spacy.tokens import DocBin
        from spacy.vocab import Vocab
    except ImportError:
        raise InputError(
            f"{path}: DocBin files need the package spacy; install the extra spacy: "
            "pip install 'keras-bert-pipeline[spacy]'"
        ) from None
    try:
        docs = list(DocBin().from_bytes(content).get_docs(Vocab()))
        texts = [_annotated(path, number, doc) for number, doc in enumerate(docs, start=1)]
        grouped = [
            (name, text) for doc, text in zip(docs, texts, strict=True) for name in _groups(doc)
        ]
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: is not a DocBin file of spaCy: {reason:.120}") from None
    if not texts:
        raise InputError(f"{path}: contains no texts; expected texts with entities")
    log_unread(path, Counter(name for name, _ in grouped), grouped[0][1].where if grouped else "")
    return texts


def _annotated(path: Any, number: int, doc: Any) -> AnnotatedText:
    spans = None
    if doc.has_annotation("ENT_IOB"):
        spans = [(entity.label_, entity.start_char, entity.end_char) for entity in doc.ents]
    # Tokens that are neither in an entity nor outside: "missing" in spaCy, - in its JSON.
    unknown = tuple((each.idx, each.idx + len(each)) for each in doc if each.ent_iob == 0)
    return AnnotatedText(f"{path}, text {number}", number, doc.text, spans, "text", unknown)


def _groups(doc: Any) -> list[str]:
    """Describes the span group of each of its spans."""
    return [f"in the span group {name!r}" for name, spans in doc.spans.items() for _ in spans]
