"""The `tokenizers` library opens tokenizer.json and computes the ids of this library."""

import itertools
import json
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, normalizers

from keras_bert.checkpoints.tokenizer_files import tokenizer_json, write_tokenizer
from keras_bert.text.normalization import assigned_characters
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##lock", "caf", "##e", "!", "中", "É"]


class TransformersSettings(NamedTuple):
    """The arguments of transformers.BertTokenizerFast."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


SETTINGS = [
    TransformersSettings(*values)
    for values in itertools.product([True, False], [None, True, False], [True, False])
]
# Ranges of characters for which the libraries agree in any order: Latin, Greek without the capital
# sigma, Cyrillic; letters with accents as marks; CJK ideographs, kana and Hangul.
_LETTERS = [*range(0x20, 0x250), *range(0x388, 0x3A2), *range(0x3A4, 0x460)]
_GENERATED = (
    _LETTERS,
    [*range(0x41, 0x7B), 0x20, 0xDF, 0xE4, 0xC4, 0x130, 0x131, 0x1E9E, *range(0x300, 0x346)],
    [*range(0x4E00, 0x4E80), *range(0x3041, 0x3097), *range(0xF900, 0xF980), 0x20, 0x41, 0xE9],
    [*range(0xAC00, 0xAD00), *range(0x1100, 0x1113), *range(0x1161, 0x1176), 0x20, 0x4E00],
)
# What docs/concepts/tokenizer.md lists: special tokens in a text.
_SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK)\]")


def open_in_tokenizers(vocab, *settings) -> Tokenizer:
    """Opens our tokenizer.json with the normalizer that transformers creates for these settings."""
    written = tokenizer_json(vocab, TokenizerSettings(*settings))
    opened = Tokenizer.from_str(json.dumps(written))
    do_lower_case, strip_accents, tokenize_chinese_chars = TransformersSettings(*settings)
    # As in the constructor of transformers.BertTokenizerFast 5.23.
    opened.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenize_chinese_chars,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
    return opened


def different(vocab, settings, texts) -> list[str]:
    """Returns the texts for which the two libraries compute different ids."""
    ours = BertTokenizer(vocab, **TokenizerSettings(*settings).to_dict())
    opened = open_in_tokenizers(vocab, *settings)
    theirs = opened.encode_batch_fast(texts, add_special_tokens=False)
    ids = ours.tokenize(tf.constant(texts))
    values, splits = ids.flat_values.numpy(), ids.row_splits.numpy()
    rows = (values[start:end] for start, end in itertools.pairwise(splits))
    return [t for t, a, b in zip(texts, rows, theirs, strict=True) if a.tolist() != b.ids]


def vocab_of(texts) -> list[str]:
    """Returns a vocabulary of the characters of normalized texts, so that none becomes [UNK]."""
    text = "".join(texts)
    characters = {*text, *text.lower()}
    characters |= {*unicodedata.normalize("NFD", "".join(characters))}
    tokens = sorted(character for character in characters if not character.isspace())
    return [*VOCAB[:5], *tokens, *(f"##{token}" for token in tokens)]


def test_pairs_get_special_tokens_and_segments():
    encoded = open_in_tokenizers(VOCAB, True).encode("unlock", "café")
    assert encoded.tokens == ["[CLS]", "un", "##lock", "[SEP]", "caf", "##e", "[SEP]"]
    assert encoded.type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert open_in_tokenizers(VOCAB, True).decode(encoded.ids) == "unlock cafe"


@pytest.mark.parametrize("settings", SETTINGS)
def test_generated_strings(settings):
    """Covers accents, CJK ideographs and Hangul, precomposed and as marks, in random order."""
    random = np.random.default_rng(0)
    texts = []
    for codes in _GENERATED:
        for length in random.integers(1, 40, 500):
            texts.append("".join(map(chr, random.choice(codes, length))))
    texts = [text for text in texts if not _SPECIAL.search(text)]
    assert not different(vocab_of(texts), settings, texts)
    texts = ["unlock café!", "中un", "É é", "x" * 201, "x" * 200, "", "e\u0301 \u200b un\tlock"]
    assert not different(VOCAB, settings, texts)


@pytest.mark.slow
def test_transformers_opens_every_saved_tokenizer(tiny, run_in_peers, shared_data, tmp_path):
    texts = []
    for pattern in ("corpus/**/*.txt", "glue/*/*.tsv", "ner/*/*.*", "squad/*.json"):
        for path in sorted(shared_data.glob(pattern)):
            lines = path.read_text(encoding="utf-8").split("\n")[::200]
            texts += [line[:1000] for line in lines if not _SPECIAL.search(line[:1000])][:20]
    texts += ["Höhe ÉTÉ ñandú", "e\u0301 İ ẞ ß", "中un北京", "한국어 \u1112\u1161\u11ab", ""]
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    vocab = vocab_of(texts)
    folders = [tmp_path / str(index) for index in range(len(SETTINGS))]
    config = {**tiny.config.to_dict(), "vocab_size": len(vocab), "model_type": "bert"}
    for folder, settings in zip(folders, SETTINGS, strict=True):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        write_tokenizer(folder, vocab, TokenizerSettings(*settings), 512)
    out = tmp_path / "ids.json"
    run_in_peers("tokenize_transformers.py", tmp_path / "texts.json", out, *folders)
    for theirs, settings in zip(json.loads(out.read_text()), SETTINGS, strict=True):
        ours = BertTokenizer(vocab, **TokenizerSettings(*settings).to_dict()).tokenize(texts)
        assert ours.to_list() == theirs, settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ((True, None, True), 760),
        ((True, False, False), 375 - 256),
        ((False, None, True), 375),
        ((False, True, False), 760 - 256),
    ],
)
def test_characters_with_other_ids(settings, count):
    """The numbers are those in docs/concepts/tokenizer.md."""
    characters = [c for c in assigned_characters() if unicodedata.category(c) not in ("Co", "Cs")]
    assert len(characters) == 144_762
    codes = [*range(0x21, 0xD800), *range(0xE000, 0x32000), *range(0xE0100, 0xE01F0)]
    tokens = [chr(code) for code in codes if code not in (0x85, 0xA0)]
    vocab = [*VOCAB[:5], *tokens, *(f"##{token}" for token in tokens)]
    texts = [f"a{character}b" for character in characters]
    assert len(different(vocab, settings, texts)) == count
