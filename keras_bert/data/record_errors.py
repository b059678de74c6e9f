"""Finds the damaged record that caused a TensorFlow error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.data.parsing import parse_records
from keras_bert.data.pretraining_records import PretrainingData, first_line

# The number of records that are read at once in each pass of the search for the damaged one.
_BATCH_SIZES = (1024, 32, 1)
# TensorFlow raises a UnicodeDecodeError if its error message quotes a record that is not UTF-8.
_RECORD_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, UnicodeDecodeError)
# TensorFlow's messages about records that cannot be read or parsed, or have values out of range.
_NOT_AN_EXAMPLE = "Could not parse example"
_RECORD_ERROR_MESSAGES = re.compile(
    rf"(corrupted|truncated) record|{_NOT_AN_EXAMPLE}|Can't parse serialized Example|"
    r"Feature: .* could not be found|Data types don't match|values != expected|"
    r"is out of range: expected"
)


@contextmanager
def explain_record_errors(data: PretrainingData, vocab_size: int) -> Iterator[None]:
    """Converts errors about damaged records into an InputError that names the file and the record.

    TensorFlow's errors do not name the record. All records of `data`, the dataset that the `with`
    block reads, are therefore read again to find it.
    """
    try:
        yield
    except _RECORD_ERRORS as error:
        if not _RECORD_ERROR_MESSAGES.search(_message(error)):
            raise
        logging.info(
            "a record cannot be read; checking all %d records in %d files to find it",
            data.num_examples,
            len(data.files),
        )
        for path in data.files:
            if found := _first_damaged(path, data, vocab_size):
                index, cause = found
                is_not_example = _NOT_AN_EXAMPLE in _message(cause)
                reason = "is not a tf.Example" if is_not_example else first_line(cause)
                raise InputError(f"{path}: record {index}: {reason}") from error
        raise


def _first_damaged(
    path: str, data: PretrainingData, vocab_size: int
) -> tuple[int, Exception] | None:
    """Returns the index and the error of the first unreadable record; None if there is none."""
    start, cause = 0, None
    for batch_size in _BATCH_SIZES:
        try:
            for serialized in tf.data.TFRecordDataset(path).skip(start).batch(batch_size):
                parse_records(serialized, data, vocab_size)
                start += batch_size
        except _RECORD_ERRORS as error:
            cause = error
        else:
            return None
    return start, cause


def _message(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return error.message
