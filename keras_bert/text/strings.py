"""Python strings as the byte strings that graph operations read."""

import re
from collections.abc import Iterable

import numpy as np

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_texts(texts: Iterable[str | bytes]) -> np.ndarray:
    """Encodes texts as UTF-8.

    A lone surrogate, which JSON can spell and UTF-8 cannot, becomes U+FFFD: one character for one,
    so character offsets stay those of the given string, and the tokenizer drops both.

    Args:
        texts: n strings; bytes stay as they are.

    Returns:
        Byte strings [n] as an object array.
    """
    encoded = [text if isinstance(text, bytes) else _encode(text) for text in texts]
    array = np.empty([len(encoded)], object)
    array[:] = encoded
    return array


def decode_texts(values: np.ndarray) -> np.ndarray:
    """Decodes an array of UTF-8 byte strings into Python strings of the same shape.

    Args:
        values: byte strings [...]; a byte that is not UTF-8 becomes a lone surrogate.

    Returns:
        Strings [...] as an object array.
    """
    decoded = np.empty(values.size, object)
    decoded[:] = [value.decode("utf-8", "surrogateescape") for value in values.ravel()]
    return decoded.reshape(values.shape)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text).encode()
