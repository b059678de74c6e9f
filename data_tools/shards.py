"""Creates a shard: the TFRecord file with the examples of its documents.

    documents -> tokens -> examples (`pairs`) -> shuffled or packed (`rows`)
    -> rows (`rows`) -> masked (`keras_bert.pretraining.masking`) -> records (`tfrecords`)

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
    truncate_pairs,
)
from data_tools.rows import lay_out, pack_examples
from data_tools.settings import Settings
from keras_bert import files
from keras_bert.pretraining.masking import Masking, mask_examples, num_to_predict
from keras_bert.startup import start_tensorflow
from keras_bert.text import unknown_words
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab

if TYPE_CHECKING:
    from keras_bert.text.tokenizer import BertTokenizer

# While running, the tokenizer needs about 40 times the bytes of a batch.
_SENTENCES_PER_BATCH, _BYTES_PER_BATCH = 4096, 1 << 20
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
        if end - start == _SENTENCES_PER_BATCH or (num_bytes > _BYTES_PER_BATCH and end > start):
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
