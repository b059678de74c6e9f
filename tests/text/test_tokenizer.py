"""Tests that tokens equal those of Google's tokenizer, and that offsets refer to the input bytes.

tests/golden/make_tokenizer_golden.py makes the golden hashes and the hard strings.
"""

import functools
import hashlib
import importlib.util
import itertools
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.normalization import (
    assigned_characters,
    final_sigma_pattern,
    normalize_character,
    normalizer_model,
)
from keras_bert.text.offsets import byte_to_char_offsets
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import EXACT, BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS

_PATH = Path(__file__).parents[1] / "golden" / "make_tokenizer_golden.py"
_SPEC = importlib.util.spec_from_file_location("make_tokenizer_golden", _PATH)
golden = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden)

GOOGLE_VOCABS = [name for name, (folder, _) in golden.SETTINGS.items() if folder]
TINY = [*SPECIAL_TOKENS, "un", "##afford", "##able", "a", "##b", "e", "!", "[", "]", "mask", "漢"]

hard_strings = functools.cache(golden.hard_strings)


@functools.cache
def real_texts(data):
    return list(golden.real_texts(data))


@functools.cache
def golden_hashes():
    with np.load(golden.GOLDEN) as file:
        hashes = dict(file)
    # The Unicode version of keras_bert.text.normalization.
    assert hashes["unidata_version"] == "14.0.0"
    return hashes


@functools.cache
def tokenizer_of(setting, data=None):
    folder, do_lower_case = golden.SETTINGS[setting]
    if folder is None:
        return BertTokenizer(golden.every_character_vocab(), do_lower_case)
    return BertTokenizer(data / "vocab" / folder / "vocab.txt", do_lower_case)


def differing(setting, data=None):
    ids = tokenizer_of(setting, data).tokenize(hard_strings())
    hashes = golden.hash_hard(ids.values.numpy(), ids.row_splits.numpy())
    return np.flatnonzero(hashes != golden_hashes()[f"{setting}/hard"])


def tokens_of(tokenizer, text):
    return [[tokenizer.vocab[i] for i in row] for row in tokenizer.tokenize(text).to_list()]


# Equal to Google's


@pytest.mark.parametrize("setting", GOOGLE_VOCABS)
def test_hard_strings_give_the_tokens_of_google(shared_data, setting):
    assert len(hard_strings()) > 38_000
    assert differing(setting, shared_data).tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("setting", GOOGLE_VOCABS)
def test_real_text_gives_the_tokens_of_google(shared_data, setting):
    tokenizer, wrong = tokenizer_of(setting, shared_data), []
    for name, lines in real_texts(shared_data):
        ids = tokenizer.tokenize(lines)
        hashes = golden.hash_lines(ids.values.numpy(), ids.row_splits.numpy())
        chunks = np.flatnonzero(hashes != golden_hashes()[f"{setting}/{name}"])
        wrong += [(name, f"from line {chunk * golden.LINES_A_HASH + 1}") for chunk in chunks]
    assert wrong == []


def test_every_character_gives_the_tokens_of_google_cased():
    assert differing("characters").tolist() == []


@pytest.mark.slow
def test_every_character_gives_the_tokens_of_google_except_reordered_marks():
    """Checks the one known difference (docs/concepts/tokenizer.md).

    No vocabulary of Google can show it. Unicode's canonical ordering moves one mark before another.
    The difference needs two consecutive marks of different combining class that are not dropped.
    Only 25 marks are not dropped, since they are not of category Mn.
    """

    def kept_classes(text):
        return {unicodedata.combining(c) for c in text if unicodedata.category(c) != "Mn"} - {0}

    wrong = differing("characters-lower")
    assert len(wrong) <= 13
    for index in wrong:
        assert len(kept_classes(hard_strings()[index].decode("utf-8", "ignore"))) > 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("unaffordable", ["un", "##afford", "##able"]),
        ("unaffordablex", ["[UNK]"]),
        ("a" + "b" * 199, ["a"] + ["##b"] * 199),
        ("a" + "b" * 200, ["[UNK]"]),
        ("a" + "b" * 200 + " e", ["[UNK]", "e"]),
    ],
)
def test_examples(text, tokens):
    assert tokens_of(BertTokenizer(TINY), [text]) == [tokens]


def test_dir_shows_the_public_names(root):
    names = {name for name in dir(BertTokenizer(TINY)) if name[0] != "_"}
    assert len(names) <= 15
    page = (root / "docs/reference/api/bert_tokenizer.md").read_text()
    members = {*re.search(r"members: \[(.*)\]", page)[1].split(", ")}
    assert members - {"__call__"} <= names


# Special tokens


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_special_tokens_are_kept_with_keep_special_tokens(token, do_lower_case):
    tokenizer = BertTokenizer(TINY, do_lower_case, keep_special_tokens=True)
    text = f"é{token}a{token}{token}"
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    special = TINY.index(token)
    e = TINY.index("e" if do_lower_case else "[UNK]")
    n = len(token)
    assert ids.to_list() == [[e, special, TINY.index("a"), special, special]]
    assert starts.to_list() == [[0, 2, 2 + n, 3 + n, 3 + 2 * n]]
    assert ends.to_list() == [[2, 2 + n, 3 + n, 3 + 2 * n, 3 + 3 * n]]
    assert tokenizer.split_words([text]).to_list()[0][1] == f"{EXACT}{token}".encode()


def test_only_exact_special_tokens_are_kept():
    tokenizer = BertTokenizer(TINY, keep_special_tokens=True)
    assert tokens_of(tokenizer, ["[mask]", "[ MASK]", "[MASK", "\ufdd0", "[MA\x00SK]"]) == [
        ["[", "mask", "]"],
        ["[", "mask", "]"],
        ["[", "mask"],
        ["[UNK]"],
        ["[", "mask", "]"],
    ]


@pytest.mark.slow
def test_keep_special_tokens_does_not_change_other_text():
    # Noncharacters stand in for special tokens; no real vocabulary contains their block.
    vocab = [p for p in golden.every_character_vocab() if not "\ufdd0" <= p[-1] <= "\ufdef"]
    plain, keeping = BertTokenizer(vocab), BertTokenizer(vocab, keep_special_tokens=True)
    others = [s for s in hard_strings() if not any(t.encode() in s for t in SPECIAL_TOKENS)]
    assert len(others) > 37_000
    expected, got = plain.tokenize(others), keeping.tokenize(others)
    np.testing.assert_array_equal(got.values, expected.values)
    np.testing.assert_array_equal(got.row_splits, expected.row_splits)


# Offsets


@pytest.mark.parametrize("setting", ["characters-lower", "characters"])
def test_each_token_equals_the_normalized_text_at_its_offsets(setting):
    tokenizer = tokenizer_of(setting)
    assigned = {*assigned_characters()}

    @functools.cache
    def normalized(char: str) -> str:
        if char not in assigned:  # Python may have a later version of Unicode, where it is.
            return char
        return normalize_character(char, tokenizer.settings).replace(" ", "")

    texts = hard_strings()[::4]
    ids, starts, ends = (r.to_list() for r in tokenizer.tokenize_with_offsets(texts))
    assert ids == tokenizer.tokenize(texts).to_list()
    for text, row, begins, limits in zip(texts, ids, starts, ends, strict=True):
        assert begins == sorted(begins)
        assert all(0 <= s < e <= len(text) for s, e in zip(begins, limits, strict=True))
        for token, start, end in zip(
            (tokenizer.vocab[i] for i in row), begins, limits, strict=True
        ):
            chars = [normalized(c) for c in text[start:end].decode("utf-8", "ignore")]
            covered = "".join(chars).replace("ς", "σ")
            if token == "[UNK]":
                assert covered
                continue
            if len(token) > 2:
                token = token.removeprefix("##")
            token = token.replace("ς", "σ")
            # One character can give several tokens; each of them then covers the whole character.
            assert token == covered or (token in covered and len([c for c in chars if c]) == 1)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("  un-afford ", ["un", "-", "afford"]),
        ("cafe\u0301\u200b e\u0301e\u200b", ["cafe\u0301", "e\u0301e"]),
        ("≠ \u037e", ["≠", "\u037e"]),
        ("漢\ufe00字", ["漢\ufe00", "字"]),
        ("x" * 201 + "!", ["x" * 201, "!"]),
        ("İA", ["İA"]),
    ],
)
def test_offset_examples(text, spans):
    tokenizer = BertTokenizer(TINY)
    _, starts, ends = tokenizer.tokenize_with_offsets([text])
    starts, ends = byte_to_char_offsets([text], starts), byte_to_char_offsets([text], ends)
    pairs = itertools.chain(zip(starts.to_list()[0], ends.to_list()[0], strict=True))
    assert [text[s:e] for s, e in pairs] == spans


# Graphs and vocabularies


@pytest.mark.slow
def test_tokenizer_created_inside_dataset_map():
    def ids(text):
        return BertTokenizer(TINY).tokenize(text).to_tensor()

    dataset = tf.data.Dataset.from_tensors(["un a"]).map(ids)
    assert next(iter(dataset)).numpy().tolist() == [[TINY.index("un"), TINY.index("a")]]


def test_unusable_vocabulary_is_rejected():
    with pytest.raises(InputError, match=r"expected the special token.* \[MASK\]"):
        BertTokenizer([*SPECIAL_TOKENS[:4], "a"])
    with pytest.raises(InputError, match="cannot use this vocabulary"):
        BertTokenizer([*SPECIAL_TOKENS, "##a\x00"])


# --- Unicode 14 ---


def digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.slow
def test_table_is_that_of_unicode_14():
    """The digests come from `unicodedata` of Python 3.11; they are the same on 3.12 and 3.13."""
    assert digest(normalizer_model(TokenizerSettings(False))) == "79c62c80df5986eb"
    assert digest(normalizer_model(TokenizerSettings(True))) == "c66dc464737e2e96"
    assert digest(final_sigma_pattern().encode()) == "d1f180d02f3095b4"


# --- texts to inputs and back ---


def test_ids_of_a_text_are_decoded_to_its_tokens():
    tokenizer = BertTokenizer(TINY)
    ids = tokenizer.encode("Unaffordable a!")
    assert ids == [2, *tokenizer.tokenize(["Unaffordable a!"]).to_list()[0], 3]
    assert tokenizer.encode("Unaffordable a!", add_special_tokens=False) == ids[1:-1]
    assert tokenizer.decode(ids) == "[CLS] unaffordable a ! [SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "unaffordable a !"
    rows = tokenizer.tokenize(["a!", "", "漢"])
    for batch in (rows, rows.to_list(), rows.to_tensor(tokenizer.pad_token_id)):
        assert tokenizer.decode(batch, skip_special_tokens=True) == ["a !", "", "漢"]
    for wrong in ([-1], [len(TINY)], [[0.5]], np.array([99])):
        with pytest.raises(
            InputError, match=rf"ids contains .*whole numbers from 0 to {len(TINY) - 1}"
        ):
            tokenizer.decode(wrong)


def test_call_returns_the_inputs_of_a_network(caplog):
    tokenizer = BertTokenizer(TINY)
    cls, sep, a, mark = (TINY.index(token) for token in ("[CLS]", "[SEP]", "a", "!"))
    inputs = tokenizer(["a", "a!"], ["!", "a a a"], max_seq_length=7)
    assert {name: values.tolist() for name, values in inputs.items()} == {
        "input_ids": [[cls, a, sep, mark, sep, 0, 0], [cls, a, mark, sep, a, a, sep]],
        "input_mask": [[1] * 5 + [0] * 2, [1] * 7],
        "segment_ids": [[0, 0, 0, 1, 1, 0, 0], [0] * 4 + [1] * 3],
    }
    assert "1 of 2 texts are truncated to max_seq_length=7 tokens" in caplog.text
    assert tokenizer("a")["input_ids"].tolist() == [[cls, a, sep]]
    for column in (np.array(["a"]), pa.array(["a"]), pa.table({"t": ["a"]})["t"]):
        assert tokenizer(column)["input_ids"].tolist() == [[cls, a, sep]]
    assert tokenizer([])["input_ids"].shape == (0, 0)
    for arguments, message in (
        ((["a"], ["a", "a"]), "texts has 1 items, and pairs has 2; expected the same"),
        ((["a", None],), r"texts\[1\] is None; expected a string"),
        (({"a": ["b"]},), "texts is a dict; expected a string or a list of strings"),
        (("a", "a", 4), "max_seq_length: expected at least 5 for a pair, got 4"),
    ):
        with pytest.raises(InputError, match=message):
            tokenizer(*arguments)
