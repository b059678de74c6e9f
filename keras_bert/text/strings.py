"""Converts between Python strings and the UTF-8 byte strings that TensorFlow ops read."""

import re
from collections.abc import Iterable

import numpy as np

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_texts(texts: Iterable[str | bytes]) -> np.ndarray:
    """Encodes texts as UTF-8, and returns them in an object array [n].

    Bytes are returned unchanged. Lone surrogates, which UTF-8 cannot represent, become U+FFFD, so
    character offsets stay the same.
    """
    encoded = [text if isinstance(text, bytes) else _encode(text) for text in texts]
    array = np.empty([len(encoded)], object)
    array[:] = encoded
    return array


def decode_texts(values: np.ndarray) -> np.ndarray:
    """Decodes UTF-8 byte strings, and returns them in an object array of the same shape.

    A byte that is not valid UTF-8 becomes a lone surrogate.
    """
    decoded = np.empty(values.size, object)
    decoded[:] = [value.decode("utf-8", "surrogateescape") for value in values.ravel()]
    return decoded.reshape(values.shape)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text).encode()
