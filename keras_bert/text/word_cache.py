"""Tokenizes texts outside a graph, through a cache of units of text.

    texts   "The cat,"  "the cat!"                      bytes [B]
    units   The | cat | ,     the | cat | !             divided at white space and punctuation
    slots    1     2    3      4     2    5             [U], the index of each unit in the cache
    ids     1996  4937  1010  1996  4937  999           [T]

No rule of the tokenizer looks beyond a space or, with the exceptions in `_find_units`, beyond
punctuation. So the ids of a text are those of its units, and the graph tokenizer has to compute the
ids of each unit only once. Units of up to 16 bytes are looked up in a hash table of NumPy arrays,
all units of a block at a time; longer ones in a dict.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_bert.errors import InputError
from keras_bert.text.normalization import ASCII_PUNCTUATION
from keras_bert.text.offsets import encode_texts

_OTHER, _SEPARATOR, _PUNCTUATION, _PRINTABLE = range(4)  # Other: control or not ASCII.
_CLASSES = np.full(256, _OTHER, np.uint8)
_CLASSES[0x20:0x7F] = _PRINTABLE
_CLASSES[[*b"\t\n\r "]] = _SEPARATOR
_CLASSES[[*map(ord, ASCII_PUNCTUATION)]] = _PUNCTUATION
_SIGMA = "Σ".encode()
# Dashes, quotation marks and other punctuation, U+2010 to U+2027 and U+2030 to U+203F. In UTF-8,
# their first two bytes are E2 80; these are the possible third bytes.
_LONG_PUNCTUATION = b"\xe2\x80"
_ENDS_PUNCTUATION = np.zeros(256, bool)
_ENDS_PUNCTUATION[[*range(0x90, 0xA8), *range(0xB0, 0xC0)]] = True

_KEY_BYTES = 16
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # By number of bytes.
# Random, so that no text can contain many words of one bucket on purpose.
_FACTORS = np.frombuffer(os.urandom(16), np.uint64) | np.uint64(1)

# The arrays of a block, and those of a group of sentences, fit in a processor's cache.
_BLOCK_BYTES, _GROUP_TEXTS = 1 << 18, 1 << 12
# With more units or bytes of long units than these, the next call starts with an empty cache.
_MAX_UNITS, _MAX_LONG_BYTES = 1 << 18, 1 << 25


class WordCache:
    """Tokenizes texts, and remembers the tokens of their units; several threads may call it.

    Args:
        tokenize: tokenizes byte strings [U]; returns the int32 arrays [T] of the values of all
            tokens, and the number of tokens of each string, [U]. The first array has the ids; if
            there are two others, they are the starts and ends of the tokens in bytes.
        num_values: the number of arrays, 1 or 3.
        do_lower_case: whether the tokenizer lower-cases.
        has_user_tokens: whether tokens may stay whole, with their case and punctuation.
    """

    def __init__(
        self,
        tokenize: Callable[[Sequence[bytes]], tuple[Sequence[np.ndarray], np.ndarray]],
        num_values: int,
        do_lower_case: bool,
        has_user_tokens: bool,
    ):
        self._tokenize = tokenize
        self._num_values = num_values
        self._do_lower_case = do_lower_case
        self._has_user_tokens = has_user_tokens
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._new: list[bytes] = []  # The units of the last slots, which are not tokenized yet.
        # Slot 0 stands for an empty bucket of the hash table; its key, 0, is that of no unit.
        self._num_slots = 1
        self._buckets = np.zeros(1 << 12, np.int32)  # Their slots.
        # For each slot: the bytes of the unit, its first token in `_values`, and its token count.
        self._low, self._high = np.zeros([2, 1 << 11], np.uint64)
        self._first, self._counts = np.zeros([2, 1 << 11], np.int64)
        self._values = np.zeros([self._num_values, 1 << 12], np.int32)
        self._num_tokens = 0
        self._long: dict[bytes, int] = {}  # The slots of long units.
        self._long_bytes = 0

    def __call__(self, texts: Sequence[str | bytes]) -> tuple[list[np.ndarray], np.ndarray]:
        """Tokenizes texts [B].

        Returns:
            The values of all tokens, int32 [T] each, and the row splits, int64 [B + 1]. The values
            are the ids and, if the cache has them, the starts and ends in bytes in the text.
        """
        starts = range(0, len(texts), _GROUP_TEXTS)
        groups = [_join_texts(texts[start : start + _GROUP_TEXTS]) for start in starts]
        with self._lock:
            if self._num_slots > _MAX_UNITS or self._long_bytes > _MAX_LONG_BYTES:
                self._clear()
            try:
                units = [self._look_up(data) for data, _ in groups]
                self._tokenize_new()
                joined = [
                    self._join(*units_of_group, text_starts)
                    for units_of_group, (_, text_starts) in zip(units, groups, strict=True)
                ]
            except BaseException:  # Ctrl-C, too, may leave the arrays half-written.
                self._clear()
                raise
        arrays = [np.zeros([self._num_values, 0], np.int32), *(values for values, _ in joined)]
        splits = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.concatenate([splits[:1], *(counts for _, counts in joined)]), out=splits)
        return [*np.concatenate(arrays, axis=1)], splits

    def _look_up(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the starts of the units in a group of joined texts, and their slots, [U] each."""
        if self._do_lower_case and not self._has_user_tokens:
            data = data.lower()  # ASCII letters, so that there are fewer units.
        blocks = [(np.zeros(0, np.int64), np.zeros(0, np.int32))]
        for start, block in _blocks(data):
            starts, sizes = self._find_units(block)
            blocks.append((start + starts, self._find_slots(block, starts, sizes)))
        unit_starts, slots = map(np.concatenate, zip(*blocks, strict=True))
        return unit_starts, slots

    def _find_units(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the starts and sizes of the units in a block, int64 [U] each."""
        classes = np.frombuffer(data.translate(_CLASSES), np.uint8)
        # Punctuation is a unit of its own. There are three exceptions: an accent or a control
        # character after it (here, any character that is not ASCII) may belong to its token, a
        # capital sigma depends on letters before and after punctuation, and user tokens may contain
        # punctuation.
        is_mark = np.zeros(classes.shape, bool)
        long_marks = np.zeros(0, np.int64)  # The starts of the units of three bytes.
        if not self._has_user_tokens and not (self._do_lower_case and _SIGMA in data):
            if _LONG_PUNCTUATION in data:
                starts = _find_long_punctuation(data)
                classes = np.append(classes, np.uint8(_SEPARATOR))  # A copy, for `starts + 3`.
                classes[starts] = _PUNCTUATION  # So that punctuation before it is divided, too.
                long_marks = starts[classes[starts + 3] != _OTHER]
                classes = classes[:-1]
            np.equal(classes, _PUNCTUATION, out=is_mark)
            is_mark[:-1] &= classes[1:] != _OTHER
        in_word = classes != _SEPARATOR
        in_word &= ~is_mark
        is_start, is_end = is_mark.copy(), is_mark
        is_start[long_marks] = is_end[long_marks + 2] = True
        for byte in range(3):
            in_word[long_marks + byte] = False
        is_start[:1] |= in_word[:1]
        is_start[1:] |= in_word[1:] & ~in_word[:-1]
        is_end[-1:] |= in_word[-1:]
        is_end[:-1] |= in_word[:-1] & ~in_word[1:]
        starts = np.flatnonzero(is_start)
        return starts, np.flatnonzero(is_end) + 1 - starts

    def _find_slots(self, data: bytes, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns the slot of each unit of a block, int32 [U]; new units get new slots."""
        padded = data + bytes(_KEY_BYTES)
        numbers = np.ndarray([len(data) + 8], "<u8", padded, strides=[1])
        low = numbers.take(starts)
        low &= _MASKS.take(sizes, mode="clip")
        # Only a minority has 8 bytes or more. The key of a shorter unit, whose last byte is 0, is
        # not that of any of these.
        long = np.flatnonzero(sizes >= 8)
        high = np.zeros_like(low)
        high[long] = numbers[starts[long] + 8] & _MASKS.take(sizes[long] - 8, mode="clip")
        slots = self._buckets.take(self._bucket(low, high, long))
        is_known = self._low.take(slots) == low
        is_known[long] &= self._high[slots[long]] == high[long]
        has_key = sizes <= _KEY_BYTES
        if b"\0" in data:  # Keys of different units may be equal.
            has_key[:] = False
        is_known &= has_key
        if is_known.all():
            return slots

        other = np.flatnonzero(~is_known)
        missing = other[has_key[other]]
        if missing.size:
            if 2 * (self._num_slots + missing.size) > self._buckets.size:
                self._grow(4 * (self._num_slots + missing.size))
            slots[missing] = self._insert(data, starts, sizes, low, high, missing)
        without_key = other[~has_key[other]]
        if without_key.size:
            units = _parts(data, starts[without_key], sizes[without_key])
            new = [unit for unit in dict.fromkeys(units) if unit not in self._long]
            first = self._add_slots(new)
            self._long.update(zip(new, range(first, self._num_slots), strict=True))
            self._long_bytes += sum(map(len, new))
            slots[without_key] = [self._long[unit] for unit in units]
        return slots

    def _bucket(
        self, low: np.ndarray, high: np.ndarray, long: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """Returns the first bucket to look for each key in, int64 [U].

        `long` are the indices of the keys whose `high` may not be 0.
        """
        mixed = low * _FACTORS[0]
        mixed[long] += high[long] * _FACTORS[1]
        mixed ^= mixed >> np.uint64(32)
        mixed *= _FACTORS[0]
        bits = self._buckets.size.bit_length() - 1
        mixed >>= np.uint64(64 - bits)
        return mixed.view(np.int64)

    def _insert(
        self,
        data: bytes,
        starts: np.ndarray,
        sizes: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        units: np.ndarray,
    ) -> np.ndarray:
        """Returns the slots of units with keys, int32 [n]; `units` are their indices in a block."""
        low, high = low[units], high[units]
        slots = np.zeros(len(units), np.int32)
        todo, bucket = np.arange(len(units)), self._bucket(low, high)
        while todo.size:
            # The units that take an empty bucket, one for each, get new slots.
            empty = np.flatnonzero(self._buckets[bucket] == 0)
            self._buckets[bucket[empty]] = -1 - empty
            empty = empty[self._buckets[bucket[empty]] == -1 - empty]
            new = units[todo[empty]]
            first = self._add_slots(_parts(data, starts[new], sizes[new]))
            slice_ = slice(first, self._num_slots)
            self._low[slice_], self._high[slice_] = low[todo[empty]], high[todo[empty]]
            self._buckets[bucket[empty]] = np.arange(first, self._num_slots)
            # The others, unless they are equal to these, look into the next bucket.
            slot = self._buckets[bucket]
            slots[todo] = slot
            is_other = (self._low[slot] != low[todo]) | (self._high[slot] != high[todo])
            todo, bucket = todo[is_other], (bucket[is_other] + 1) & (self._buckets.size - 1)
        return slots

    def _add_slots(self, units: list[bytes]) -> int:
        """Adds slots for new units; returns the first one."""
        first = self._num_slots
        self._num_slots += len(units)
        self._new += units
        self._low = _at_least(self._low, self._num_slots)
        self._high = _at_least(self._high, self._num_slots)
        self._first = _at_least(self._first, self._num_slots)
        self._counts = _at_least(self._counts, self._num_slots)
        return first

    def _grow(self, size: int) -> None:
        """Replaces the hash table by one with at least `size` buckets."""
        self._buckets = np.zeros(1 << size.bit_length(), np.int32)
        slots = 1 + np.flatnonzero(self._low[1 : self._num_slots])  # Long units have no key.
        # Of units with the same bucket, the last one gets it: the oldest, which is more frequent.
        slots = slots[::-1]
        bucket = self._bucket(self._low[slots], self._high[slots])
        while slots.size:
            empty = self._buckets[bucket] == 0
            self._buckets[bucket[empty]] = slots[empty]
            is_other = self._buckets[bucket] != slots
            slots, bucket = slots[is_other], (bucket[is_other] + 1) & (self._buckets.size - 1)

    def _tokenize_new(self) -> None:
        if not self._new:
            return
        values, counts = self._tokenize(self._new)
        new = slice(self._num_slots - len(self._new), self._num_slots)
        self._new = []
        self._counts[new] = counts
        self._first[new] = self._num_tokens + np.cumsum(counts) - counts
        end = self._num_tokens + len(values[0])
        self._values = _at_least(self._values, end)
        self._values[:, self._num_tokens : end] = values
        self._num_tokens = end

    def _join(
        self, unit_starts: np.ndarray, slots: np.ndarray, text_starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the values [num_values, T] of a group, and the token counts of its texts, [B].

        The starts of units and texts are positions in the bytes of the joined texts.
        """
        counts = self._counts.take(slots)
        token_splits = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(counts, out=token_splits[1:])
        index = np.repeat(self._first.take(slots) - token_splits[:-1], counts)
        index += np.arange(len(index))
        values = self._values.take(index, axis=1, mode="clip")
        first_units = np.append(np.searchsorted(unit_starts, text_starts), len(slots))
        if self._num_values > 1:
            starts_in_text = unit_starts - np.repeat(text_starts, np.diff(first_units))
            values[1:] += np.repeat(starts_in_text.astype(np.int32), counts)
        return values, np.diff(token_splits[first_units])


def _join_texts(texts: Sequence[str | bytes]) -> tuple[bytes, np.ndarray]:
    """Joins texts with spaces; returns UTF-8, and the start of each text in bytes, int64 [B]."""
    try:
        encoded = [text.encode() for text in texts]
    except (AttributeError, UnicodeEncodeError):  # Bytes, or lone surrogates.
        if wrong := [text for text in texts if not isinstance(text, str | bytes)]:
            raise InputError(f"text contains {wrong[0]!r:.60}; expected strings") from None
        encoded = encode_texts(texts).tolist()
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return b" ".join(encoded), np.cumsum(lengths + 1) - lengths - 1


def _blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Divides texts, joined by spaces, at spaces; yields the start of each block and its bytes."""
    start = 0
    while start < len(data):
        end = data.rfind(b" ", start, start + _BLOCK_BYTES)
        if len(data) - start <= _BLOCK_BYTES:
            end = len(data)
        elif end == -1:
            end = data.find(b" ", start)
            end = len(data) if end == -1 else end
        yield start, data[start:end]
        start = end + 1


def _find_long_punctuation(data: bytes) -> np.ndarray:
    """Returns the starts of the punctuation of three bytes, int64 [n]."""
    numbers = np.frombuffer(data, np.uint8)
    starts = np.flatnonzero(numbers[:-2] == _LONG_PUNCTUATION[0])
    is_long = numbers[starts + 1] == _LONG_PUNCTUATION[1]
    return starts[is_long & _ENDS_PUNCTUATION[numbers[starts + 2]]]


def _parts(data: bytes, starts: np.ndarray, sizes: np.ndarray) -> list[bytes]:
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    return [data[start : start + size] for start, size in pairs]


def _at_least(array: np.ndarray, size: int) -> np.ndarray:
    """Returns an array whose last axis has at least `size` items, a larger copy if necessary."""
    if array.shape[-1] >= size:
        return array
    copy = np.zeros([*array.shape[:-1], 2 * size], array.dtype)
    copy[..., : array.shape[-1]] = array
    return copy
