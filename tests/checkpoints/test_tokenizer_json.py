"""The `tokenizers` library opens tokenizer.json and computes the ids of this library."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tokenizers import Tokenizer

from keras_bert.checkpoints.tokenizer_json import tokenizer_json
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import load_vocab

VOCABS = [
    ("bert-base-uncased", True),
    ("bert-base-cased", False),
    ("bert-base-chinese", True),
    ("bert-base-multilingual-cased", False),
]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##lock", "caf", "##e", "!", "中", "É"]
# What docs/concepts/tokenizer.md lists: special tokens in a text.
_SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK)\]")


def open_in_tokenizers(vocab, do_lower_case) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(vocab, do_lower_case)))


def different(vocab, do_lower_case, texts) -> list[str]:
    """Returns the texts for which the two libraries compute different ids."""
    opened = open_in_tokenizers(vocab, do_lower_case)
    theirs = opened.encode_batch_fast(texts, add_special_tokens=False)
    ours = BertTokenizer(vocab, do_lower_case).tokenize(tf.constant(texts))
    ids, splits = ours.flat_values.numpy(), ours.row_splits.numpy()
    rows = (ids[start:end] for start, end in itertools.pairwise(splits))
    return [t for t, a, b in zip(texts, rows, theirs, strict=True) if a.tolist() != b.ids]


def test_examples():
    texts = ["unlock café!", "中un", "É", "x" * 201, "x" * 200, "", "e\u0301 \u200b un\tlock"]
    assert not different(VOCAB, True, texts)
    assert not different(VOCAB, False, texts)


def test_pairs_get_special_tokens_and_segments():
    encoded = open_in_tokenizers(VOCAB, True).encode("unlock", "café")
    assert encoded.tokens == ["[CLS]", "un", "##lock", "[SEP]", "caf", "##e", "[SEP]"]
    assert encoded.type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert open_in_tokenizers(VOCAB, True).decode(encoded.ids) == "unlock cafe"


def test_special_tokens_in_a_text_are_single_tokens_there():
    assert open_in_tokenizers(VOCAB, True).encode("[MASK]", add_special_tokens=False).ids == [4]


def real_texts(data, step: int) -> Iterator[tuple[Path, list[str]]]:
    """Yields every text file of the shared data with every `step`-th of its lines."""
    for pattern in ("corpus/**/*.txt", "glue/*/*.tsv", "ner/*/*.*", "squad/*.json"):
        for path in sorted(data.glob(pattern)):
            lines = path.read_text(encoding="utf-8").split("\n")[::step]
            parts = [line[i : i + 1000] for line in lines for i in range(0, len(line) or 1, 1000)]
            yield path, [part for part in parts if not _SPECIAL.search(part)]


@pytest.mark.parametrize(("folder", "do_lower_case"), VOCABS)
@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_real_text(shared_data, folder, do_lower_case, step):
    vocab = load_vocab(shared_data / "vocab" / folder / "vocab.txt")
    count = 0
    for path, texts in real_texts(shared_data, step):
        assert not different(vocab, do_lower_case, texts), path
        count += len(texts)
    assert count > 300_000 / step
