"""Converts between Python strings and the UTF-8 byte strings that TensorFlow ops read."""

import re
from collections.abc import Iterable

import numpy as np

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_texts(texts: Iterable[str | bytes]) -> np.ndarray:
    """Encodes texts as UTF-8, in an object array [n]; bytes are returned unchanged.

    A lone surrogate, which JSON can express and UTF-8 cannot, becomes U+FFFD. One character
    replaces one, so character offsets stay valid; the tokenizer drops both.
    """
    encoded = [text if isinstance(text, bytes) else _encode(text) for text in texts]
    array = np.empty([len(encoded)], object)
    array[:] = encoded
    return array


def decode_texts(values: np.ndarray) -> np.ndarray:
    """Decodes an array of UTF-8 byte strings into an object array of strings of the same shape.

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
