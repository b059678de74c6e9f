"""Collects the numbers of a JSON list in an array, in little memory.

A number needs at least two bytes of JSON, and at most eight in an array. A list of any length is
therefore kept in one buffer that grows in place, with the smallest dtype for its integers.
"""

import json

import numpy as np

_INTEGERS = tuple(map(np.iinfo, (np.int8, np.int16, np.int32, np.int64)))


def parse_numbers(text: str) -> np.ndarray:
    """Converts a text of numbers separated by commas to an array [N] of integers or float64.

    Integers have the smallest signed dtype that fits.

    Raises:
        ValueError, OverflowError: a number is invalid or large.
    """
    numbers = json.loads(f"[{text}]")
    if set(map(type, numbers)) == {int}:
        low, high = min(numbers), max(numbers)
        for limits in _INTEGERS:
            if limits.min <= low and high <= limits.max:
                return np.array(numbers, limits.dtype)
        raise OverflowError
    array = np.array(numbers, np.float64)
    if np.isinf(array).sum() != text.count("I"):  # The "I" of "Infinity".
        raise OverflowError
    return array


class NumberList:
    """A list of numbers, to which arrays are appended."""

    def __init__(self) -> None:
        self._first: np.ndarray | None = None  # The only array so far.
        self._data = bytearray()  # All arrays, if there are several.
        self._dtype = np.dtype(np.int8)

    def append(self, numbers: np.ndarray) -> None:
        """Appends an array [N] of integers or float64."""
        if self._first is None:
            self._first, self._dtype = numbers, numbers.dtype
            return
        if not self._data:
            self._data += memoryview(self._first).cast("B")
        dtype = np.result_type(self._dtype, numbers.dtype)
        if dtype != self._dtype:
            narrow = self.array()
            self._data = bytearray(len(narrow) * dtype.itemsize)
            self._dtype = dtype
            self.array()[:] = narrow
        self._data += memoryview(numbers.astype(dtype, copy=False)).cast("B")

    def array(self) -> np.ndarray:
        """Returns all numbers as an array [N]; nothing may be appended while it is in use."""
        if self._data:
            return np.frombuffer(self._data, self._dtype)
        return np.empty(0, self._dtype) if self._first is None else self._first
