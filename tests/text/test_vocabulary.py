"""Tests of reading vocab.txt: accepted and rejected files."""

import pytest

from keras_bert.errors import InputError
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab

SPECIAL = "\n".join(SPECIAL_TOKENS) + "\n"


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "vocab.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_bytes_that_are_not_utf8_are_rejected_with_the_line(write):
    with pytest.raises(InputError, match=r"vocab.txt, line 6: expected UTF-8, got .*\\xff"):
        load_vocab(write(SPECIAL.encode() + b"a\xff\n"))


def test_lines_end_only_at_newlines_and_white_space_around_tokens_is_removed(write):
    lines = ["the ", "\tcat", " ##s\t", "a\u3000", "b\r"]
    odd = ["\u2028", "##\u2028", "\u3000", "\x85", "a\u2029b", "\x0c"]
    lines, tokens = [*lines, *odd], ["the", "cat", "##s", "a", "b", *odd]
    assert load_vocab(write(SPECIAL + "\n".join(lines))) == [*SPECIAL_TOKENS, *tokens]


def test_ids_are_lines_even_of_empty_lines_and_repeated_tokens(write, caplog):
    vocab = load_vocab(write(SPECIAL + "the\n\na\nthe\n[unused1]\n\n\n"))
    names = ["[unused0]", "[unused2]", "a", "the", "[unused1]"]
    assert vocab == [*SPECIAL_TOKENS, *names]
    assert "no text has the ids of 2 lines" in caplog.text
    assert "line 6, repeats the token 'the'" in caplog.text


def test_byte_order_mark_is_ignored(write, caplog):
    assert load_vocab(write("\ufeff" + SPECIAL)) == [*SPECIAL_TOKENS]
    assert "vocab.txt: starts with a byte order mark, which is ignored" in caplog.text


@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_files_are_rejected(write, content):
    with pytest.raises(InputError, match="got an empty"):
        load_vocab(write(content))


def test_special_tokens_in_lower_case_are_rejected_and_named(write):
    with pytest.raises(InputError, match=r"\[MASK\].*\[mask\] in lower case"):
        load_vocab(write(SPECIAL.replace("[MASK]", "[mask]")))


@pytest.mark.parametrize(
    ("folder", "size"),
    [
        ("bert-base-uncased", 30522),
        ("bert-base-cased", 28996),
        ("bert-base-chinese", 21128),
        ("bert-base-multilingual-cased", 119547),
        ("odd-chinese-crlf", 21128),
    ],
)
def test_real_vocabularies_have_the_expected_sizes(shared_data, folder, size):
    path = shared_data / "vocab" / folder / "vocab.txt"
    vocab = load_vocab(path)
    assert len(vocab) == size
    assert vocab == path.read_bytes().decode().replace("\r", "").removesuffix("\n").split("\n")


def test_missing_files_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"cannot read vocabulary .*none.txt: No such file"):
        load_vocab(tmp_path / "none.txt")
