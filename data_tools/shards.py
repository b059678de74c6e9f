"""Creates a shard: the TFRecord file with the examples of its documents.

    documents -> tokens -> examples (`pairs`) -> shuffled or packed -> rows
    -> masked (`keras_bert.pretraining.masking`) -> records (`tfrecords`)

    row: [CLS] part [SEP] part [SEP] ... padding; in a packed row, several examples before padding

The bytes of a shard depend only on its documents, the vocabulary and the settings, which include
the seed. Therefore shards can be created anywhere, in any order, by any number of workers.
"""

import functools
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools import spill, tfrecords
from data_tools.pairs import (
    NUM_SPECIAL_TOKENS,
    Documents,
    ExampleSpans,
    make_full_sentences,
    make_pairs,
    ranges,
    truncate_pairs,
)
from data_tools.settings import Settings
from keras_bert import files
from keras_bert.pretraining.masking import Masking, mask_examples, num_to_predict
from keras_bert.startup import start_tensorflow
from keras_bert.text import unknown_words
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab

if TYPE_CHECKING:
    from keras_bert.text.tokenizer import BertTokenizer

# A batch limits the memory of the tokenizer's arrays.
_BYTES_PER_BATCH = 1 << 22
_ROWS_PER_BATCH = 1024

# Limits a worker to one shard in memory, even if an executor runs several jobs in its threads.
_one_shard = threading.Lock()


def make_shard(
    index: int, documents: list[str], directory: str, vocab_file: str, settings: Settings
) -> dict[str, Any]:
    """Creates a shard in a folder, writes its note and returns the note.

    `documents` are the paths of the temporary files of `spill` that have documents of the shard.
    The note is a JSON file next to the shard, with the content that `write_shard_of` returns.
    """
    num_shards = settings.num_shards
    path = os.path.join(directory, tfrecords.shard_name(index, num_shards))
    with _one_shard:
        texts = spill.read_spilled(documents, index, num_shards)
        note = write_shard_of(texts, index, vocab_file, settings, path)
    files.write_json(path + ".json", note)
    return note


def write_shard_of(
    documents: list[list[bytes]], index: int, vocab_file: str, settings: Settings, path: str
) -> dict[str, Any]:
    """Creates the TFRecord file of a shard at `path`, and returns its note.

    Each of the `documents` is a list of sentences in UTF-8. They must be in the order of their
    digests (`spill.document_digest`). `settings` must have the actual number of shards, not 0.

    Returns:
        index; file, rows, bytes and sha256 of the TFRecord file; and the counts documents,
        sentences, examples, random_next (examples with label 1, including swapped ones), masked (0
        with dynamic, where training draws the masks), real_tokens, words and unknown_words (those
        that became [UNK]). If these are many, unknown_words_description has examples.

    Raises:
        InputError: if the vocabulary cannot be read or the file cannot be written.
    """
    tokenizer = _tokenizer(tuple(load_vocab(vocab_file)), settings.tokenizer())
    tokenized = tokenize(documents, tokenizer)
    words = _count_unknown_words(documents, tokenized, tokenizer)
    del documents  # frees memory for the examples
    counts = {"documents": len(tokenized), "sentences": len(tokenized.sentence_starts) - 1}
    counts |= {"random_next": 0, "masked": 0, "real_tokens": 0, "examples": 0}

    def batches() -> Iterator[list[bytes]]:
        for features in make_examples(tokenized, tokenizer, settings, index):
            counts["random_next"] += int(features["next_sentence_labels"].sum())
            if not settings.dynamic:
                counts["masked"] += int(features["masked_lm_weights"].sum())
            counts["real_tokens"] += int(features["input_mask"].sum())
            is_example = features.get("next_sentence_weights", features["input_mask"][:, :1])
            counts["examples"] += int(is_example.sum())
            yield tfrecords.encode_examples(features)

    entry = tfrecords.write_shard(path, batches())
    return {"index": index, **entry, **counts, **words}


def _count_unknown_words(
    documents: list[list[bytes]], tokenized: Documents, tokenizer: "BertTokenizer"
) -> dict[str, Any]:
    words, unknown = unknown_words.count_unknown_words([tokenized.ids], tokenizer)
    counts: dict[str, Any] = {"words": words, "unknown_words": unknown}
    if unknown_words.is_many(words, unknown):
        sentences = itertools.chain.from_iterable(documents)
        description = unknown_words.describe_unknown_words(sentences, tokenizer)
        counts["unknown_words_description"] = description
    return counts


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab: tuple[str, ...], settings: TokenizerSettings) -> "BertTokenizer":
    # Created once per build and process, and only when a shard is created, because it starts
    # TensorFlow. The cache key is the tokens and not the file name, because the next build in the
    # same folder may have another vocabulary in the same file.
    start_tensorflow()
    from keras_bert.text.tokenizer import BertTokenizer

    return BertTokenizer(vocab, **settings.to_dict())


def tokenize(documents: list[list[bytes]], tokenizer: "BertTokenizer") -> Documents:
    """Tokenizes documents of UTF-8 sentences; drops sentences and documents without tokens."""
    sentences = [sentence for document in documents for sentence in document]
    ids, lengths = [], []
    for batch in _batches(sentences):
        tokens = tokenizer.tokenize(batch)
        ids.append(tokens.flat_values.numpy())
        lengths.append(tokens.row_lengths().numpy())
    sentence_lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
    document_of = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    has_tokens = sentence_lengths > 0
    document_lengths = np.bincount(document_of[has_tokens], minlength=len(documents))
    return Documents(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        sentence_starts=_starts(sentence_lengths[has_tokens]),
        document_starts=_starts(document_lengths[document_lengths > 0]),
    )


def _batches(sentences: list[bytes]) -> Iterator[list[bytes]]:
    start = num_bytes = 0
    for end, sentence in enumerate(sentences):
        num_bytes += len(sentence)
        if num_bytes > _BYTES_PER_BATCH and end > start:
            yield sentences[start:end]
            start, num_bytes = end, len(sentence)
    if sentences:
        yield sentences[start:]


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def make_examples(
    documents: Documents,
    tokenizer: "BertTokenizer",
    settings: Settings,
    shard_index: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the rows of a shard in random order, in batches {feature name: array [n, width]}.

    `tfrecords` lists the features.
    """
    seed = hashlib.blake2b(
        json.dumps([settings.random_seed, settings.num_shards, shard_index]).encode(),
        digest_size=32,
    ).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "big"))
    masking = Masking.from_vocab(
        tokenizer.vocab,
        settings.masked_lm_prob,
        settings.max_predictions_per_seq,
        settings.do_whole_word_mask,
        settings.ngram,
    )
    examples = _all_copies(documents, settings, rng)
    order = np.argsort(rng.random(len(examples)), kind="stable")
    row_starts = np.arange(len(examples) + 1)
    if settings.pack:
        lengths = examples.lengths()[order]
        budget = num_to_predict(lengths, masking.masked_lm_prob, masking.max_predictions_per_seq)
        packed, row_starts = pack_examples(
            lengths, budget, settings.max_seq_length, settings.max_predictions_per_seq, rng
        )
        order = order[packed]

    for start in range(0, len(row_starts) - 1, _ROWS_PER_BATCH):
        batch = row_starts[start : start + _ROWS_PER_BATCH + 1]
        features = lay_out(
            documents.ids,
            examples.take(order[batch[0] : batch[-1]]),
            batch - batch[0],
            settings.max_seq_length,
            (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id),
            has_segments=settings.next_sentence != "none",
            packed_slots=settings.max_predictions_per_seq if settings.pack else None,
        )
        if not settings.dynamic:
            features |= mask_examples(
                features["input_ids"],
                features["input_mask"],
                masking,
                rng,
                features.get("example_ids"),
            )
        yield features


def _all_copies(documents: Documents, settings: Settings, rng: np.random.Generator) -> ExampleSpans:
    """Creates the examples of a shard, with `settings.dupe_factor` passes over its documents."""
    length, short_seq_prob = settings.max_seq_length, settings.short_seq_prob
    passes = range(settings.dupe_factor)
    if settings.next_sentence == "none":
        return ExampleSpans.concatenate(
            [make_full_sentences(documents, length, short_seq_prob, rng) for _ in passes]
        )
    copies = [
        make_pairs(documents, length, short_seq_prob, settings.next_sentence, rng) for _ in passes
    ]
    pairs = np.concatenate(copies)
    del copies  # Pairs, 40 bytes each, need the most memory if documents are few and long.
    max_num_tokens = length - NUM_SPECIAL_TOKENS
    pairs = truncate_pairs(pairs, max_num_tokens, rng)
    return ExampleSpans.of_pairs(pairs)


# --- packing ---

WINDOW = 1024  # examples; a window of twice the size saves less than 1% of the rows


def pack_examples(
    lengths: np.ndarray,
    num_predictions: np.ndarray,
    max_seq_length: int,
    max_predictions_per_seq: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Packs examples into rows of S tokens and P predictions, in random order.

    Examples in random order are packed one window at a time, from the longest to the shortest. Each
    is placed in the fullest row that has room for its tokens and its predictions (best fit).

    Args:
        lengths: int64 [n], number of tokens of each example, at most S.
        num_predictions: int64 [n], number of predicted tokens of each example, 1 to P.
        max_seq_length: S.
        max_predictions_per_seq: P.
        rng: the random number generator.

    Returns:
        order int64 [n], the example indices row by row; row_starts int64 [rows + 1], the start of
        each row in `order`, then n.
    """
    rows: list[list[int]] = []
    for start in range(0, len(lengths), WINDOW):
        window = slice(start, start + WINDOW)
        by_length = np.argsort(-lengths[window], kind="stable")
        rows += _pack_window(
            (start + by_length).tolist(),
            lengths[window][by_length].tolist(),
            num_predictions[window][by_length].tolist(),
            max_seq_length,
            max_predictions_per_seq,
        )
    row_lengths = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(row_lengths) - row_lengths
    shuffled = np.argsort(rng.random(len(rows)), kind="stable")
    examples = np.array([example for row in rows for example in row], np.int64)
    order = examples[ranges(starts[shuffled], row_lengths[shuffled])]
    return order, np.concatenate([[0], np.cumsum(row_lengths[shuffled])])


def _pack_window(
    examples: list[int],
    lengths: list[int],
    num_predictions: list[int],
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> list[list[int]]:
    """Packs one window of examples into rows; returns the example indices of each row.

    `examples` are the indices of the examples, sorted by decreasing length. `lengths` and
    `num_predictions` are in the same order.
    """
    rows: list[list[int]] = []
    predictions_left: list[int] = []
    # with_room[r] lists the rows with room for r more tokens, and bit r of `rooms` is set if there
    # are any. After a right shift by a length, the lowest set bit is the smallest sufficient room.
    with_room: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
    rooms = 0
    for example, length, needed in zip(examples, lengths, num_predictions, strict=True):
        enough = rooms >> length
        while enough:
            lowest = enough & -enough
            room = length + lowest.bit_length() - 1
            if predictions_left[with_room[room][-1]] >= needed:
                row = with_room[room].pop()
                if not with_room[room]:
                    rooms ^= 1 << room
                break
            enough ^= lowest
        else:
            row, room = len(rows), max_seq_length
            rows.append([])
            predictions_left.append(max_predictions_per_seq)
        rows[row].append(example)
        predictions_left[row] -= needed
        if predictions_left[row]:
            with_room[room - length].append(row)
            rooms |= 1 << (room - length)
    return rows


# --- layout ---


def lay_out(
    ids: np.ndarray,
    examples: ExampleSpans,
    row_starts: np.ndarray,
    max_seq_length: int,
    special_ids: tuple[int, int, int],
    has_segments: bool = True,
    packed_slots: int | None = None,
) -> dict[str, np.ndarray]:
    """Creates the features of a batch of n rows.

    A row is a sequence of runs: one for each part with its special tokens, and one of padding. A
    value that is constant in a run, such as the segment id, is repeated by the length of the run.

    Args:
        ids: int32 [T], the token ids of the documents.
        examples: the examples of the batch, row by row.
        row_starts: int64 [n + 1], the first example of each row, then the number of examples. The
            examples of a row must fit in S tokens.
        max_seq_length: S.
        special_ids: ids of [CLS], [SEP] and [PAD].
        has_segments: whether the second part of an example has segment id 1, otherwise 0.
        packed_slots: K, the maximum number of examples per packed row; None without packing.

    Returns:
        input_ids int32 [n, S]; input_mask and segment_ids uint8 [n, S]; next_sentence_labels int64
        [n, 1]. With packing, also position_ids and example_ids int32 [n, S],
        next_sentence_positions int64 [n, K], next_sentence_weights float32 [n, K], and
        next_sentence_labels int64 [n, K] instead of [n, 1].
    """
    num_rows = len(row_starts) - 1
    first_part, num_parts = examples.first_part, np.diff(examples.first_part)
    text_length = examples.parts[:, 1] - examples.parts[:, 0]
    is_first = np.zeros(len(text_length), bool)
    is_first[first_part[:-1]] = True
    run_length = text_length + 1 + is_first  # one [SEP], and [CLS] for a first part

    # Every row ends with a run of padding, possibly empty.
    row_end = first_part[row_starts[1:]]
    row_of_part = np.repeat(np.arange(num_rows), np.diff(first_part[row_starts]))
    run_of_part = np.arange(len(text_length)) + row_of_part
    lengths = np.zeros(len(text_length) + num_rows, np.int64)
    lengths[run_of_part] = run_length
    used = np.concatenate([[0], np.cumsum(run_length)])
    row_length = np.diff(used[np.append(0, row_end)])
    lengths[row_end + np.arange(num_rows)] = max_seq_length - row_length
    run_end = np.cumsum(lengths)[run_of_part]  # in the flattened batch

    def along_runs(values: np.ndarray, dtype: type) -> np.ndarray:
        """Repeats one value per part along its run, with 0 for padding: [n * S]."""
        of_run = np.zeros(len(lengths), dtype)
        of_run[run_of_part] = values
        return np.repeat(of_run, lengths)

    cls_id, sep_id, pad_id = special_ids
    column = np.arange(max_seq_length, dtype=np.int32)
    input_mask = column < row_length[:, None]
    source = along_runs(examples.parts[:, 1] - (run_end - 1), np.int64)
    source += np.arange(num_rows * max_seq_length)
    input_ids = ids.take(source, mode="clip")  # special tokens and padding are set below
    run_start = run_end - run_length
    cls_at = run_start[first_part[:-1]]
    input_ids[~input_mask.ravel()] = pad_id
    input_ids[cls_at] = cls_id
    input_ids[run_end - 1] = sep_id

    shape = (num_rows, max_seq_length)
    segment = ~is_first if has_segments else np.zeros_like(is_first)
    features = {
        "input_ids": input_ids.reshape(shape),
        "input_mask": input_mask.view(np.uint8),
        "segment_ids": along_runs(segment, np.uint8).reshape(shape),
    }
    if packed_slots is None:
        return features | {"next_sentence_labels": examples.labels[:, None]}

    row_of_example = np.repeat(np.arange(num_rows), np.diff(row_starts))
    number = np.arange(len(examples)) - row_starts[row_of_example]  # index of example in its row
    cls_column = cls_at - row_of_example * max_seq_length
    position_ids = column - along_runs(np.repeat(cls_column, num_parts), np.int32).reshape(shape)
    features["position_ids"] = np.where(input_mask, position_ids, 0)
    features["example_ids"] = along_runs(np.repeat(number + 1, num_parts), np.int32).reshape(shape)
    slot = row_of_example * packed_slots + number
    for name, values in {
        "next_sentence_labels": examples.labels,
        "next_sentence_positions": cls_column,
        "next_sentence_weights": np.ones(len(examples), np.float32),
    }.items():
        flat = np.zeros(num_rows * packed_slots, values.dtype)
        flat[slot] = values
        features[name] = flat.reshape(num_rows, packed_slots)
    return features
