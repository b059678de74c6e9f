"""Documents to shards: one shard's documents in, its TFRecord file out.

`make_shard` takes the documents that `spill` has put by for the shard, in the order of their
hashes, tokenizes, pairs (`instances`), shuffles, masks (`masking`) and encodes (`records`). A
shard's bytes are a function of its documents, the vocabulary, the settings and the seed, so shards
can be made anywhere, in any order, on any number of workers.
"""

import functools
import hashlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools import instances, masking, records, spill
from data_tools.settings import Settings
from keras_bert import files, program

if TYPE_CHECKING:
    from keras_bert.tokenization import BertTokenizer

_SENTENCES_A_BATCH = 4096
_EXAMPLES_A_BATCH = 1024


@dataclass(frozen=True)
class ShardJob:
    """One shard to be made: everything it depends on, and where it goes.

    Attributes:
        index: its number.
        num_buckets: temporary files there are; a multiple of settings.num_shards.
        directory: where the temporary files lie and the shard goes.
        vocab_file: the vocabulary.
        settings: the dataset's settings, with the real number of shards.
    """

    index: int
    num_buckets: int
    directory: str
    vocab_file: str
    settings: Settings


def make_shard(job: ShardJob) -> dict[str, Any]:
    """Makes one shard and, beside it, a note of what is in it.

    Args:
        job: the shard.

    Returns:
        The note: index; file, examples, bytes, sha256 for the manifest's `shards`; documents,
        sentences, random_next, masked, real_tokens for its `counts`.

    Raises:
        InputError: when something cannot be read or written.
    """
    settings = job.settings
    tokenizer = _tokenizer(job.vocab_file, settings.do_lower_case)
    buckets = range(job.index, job.num_buckets, settings.num_shards)
    documents = tokenize(spill.read_spilled(job.directory, buckets), tokenizer)
    counts = {"documents": len(documents), "sentences": len(documents.sentence_starts) - 1}
    counts |= {"random_next": 0, "masked": 0, "real_tokens": 0}

    def batches() -> Iterator[list[bytes]]:
        for features in make_examples(documents, tokenizer, settings, job.index):
            counts["random_next"] += int(features["next_sentence_labels"].sum())
            counts["masked"] += int(features["masked_lm_weights"].sum())
            counts["real_tokens"] += int(features["input_mask"].sum())
            yield records.encode_examples(features)

    path = os.path.join(job.directory, records.shard_name(job.index, settings.num_shards))
    entry = records.write_shard(path, batches())
    note = {"index": job.index, **entry, **counts}
    files.write_json(path + ".json", note)
    return note


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab_file: str, do_lower_case: bool) -> "BertTokenizer":
    # Once a process, and not before a shard is made: it starts TensorFlow.
    program.start_tensorflow()
    from keras_bert.tokenization import BertTokenizer

    return BertTokenizer(vocab_file, do_lower_case=do_lower_case)


def tokenize(documents: list[list[bytes]], tokenizer: "BertTokenizer") -> instances.Documents:
    """Tokenizes documents; sentences without a piece drop out, and documents without a sentence.

    Args:
        documents: sentences (UTF-8) of each document.
        tokenizer: the tokenizer.

    Returns:
        The documents as flat arrays.
    """
    sentences = [sentence for document in documents for sentence in document]
    ids, lengths = [], []
    for start in range(0, len(sentences), _SENTENCES_A_BATCH):
        pieces = tokenizer.tokenize(sentences[start : start + _SENTENCES_A_BATCH])
        ids.append(pieces.flat_values.numpy())
        lengths.append(pieces.row_lengths().numpy())
    sentence_lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
    document_of = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    kept = sentence_lengths > 0
    document_lengths = np.bincount(document_of[kept], minlength=len(documents))
    return instances.Documents(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        sentence_starts=_starts(sentence_lengths[kept]),
        document_starts=_starts(document_lengths[document_lengths > 0]),
    )


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def make_examples(
    documents: instances.Documents,
    tokenizer: "BertTokenizer",
    settings: Settings,
    shard_index: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Makes all examples of a shard, in random order.

    Args:
        documents: the shard's documents.
        tokenizer: for the special ids and the vocabulary.
        settings: the dataset's settings.
        shard_index: part of the random seed.

    Yields:
        Batches of the features of `records.FEATURES`, integers int32, weights float32.
    """
    # One seed a shard; the two generators are fed different ends of it.
    seed = hashlib.blake2b(
        json.dumps([settings.random_seed, settings.num_shards, shard_index]).encode(),
        digest_size=32,
    ).digest()
    pair_rng = random.Random(int.from_bytes(seed[:16], "big"))
    rng = np.random.default_rng(int.from_bytes(seed[16:], "big"))

    max_num_tokens = settings.max_seq_length - instances.NUM_SPECIAL_TOKENS
    copies = [
        instances.make_pairs(documents, settings.max_seq_length, settings.short_seq_prob, pair_rng)
        for _ in range(settings.dupe_factor)
    ]
    pairs = instances.truncate_pairs(np.concatenate(copies), max_num_tokens, rng)
    pairs = pairs[np.argsort(rng.random(len(pairs)), kind="stable")]

    is_continuation = np.array([piece.startswith("##") for piece in tokenizer.vocab])
    for start in range(0, len(pairs), _EXAMPLES_A_BATCH):
        features = instances.assemble(
            documents.ids,
            pairs[start : start + _EXAMPLES_A_BATCH],
            settings.max_seq_length,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.pad_token_id,
        )
        input_ids, is_text = features["input_ids"], features.pop("is_text")
        budget = masking.num_to_predict(
            features["input_mask"].sum(axis=1),
            settings.masked_lm_prob,
            settings.max_predictions_per_seq,
        )
        if settings.do_whole_word_mask:
            chosen = masking.choose_whole_words(is_text, is_continuation[input_ids], budget, rng)
        else:
            chosen = masking.choose_pieces(is_text, budget, rng)
        features |= masking.predictions(input_ids, chosen, settings.max_predictions_per_seq)
        features["input_ids"] = masking.corrupt(
            input_ids, chosen, tokenizer.mask_token_id, tokenizer.vocab_size, rng
        )
        yield features
