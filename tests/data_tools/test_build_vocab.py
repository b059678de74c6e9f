"""Learning a vocabulary: Google's order, the same bytes every time, every piece reachable."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf

from data_tools.build_vocab import alphabet_pieces, build_vocab, count_words, learn_vocab
from keras_bert.errors import InputError
from keras_bert.tokenization import BertTokenizer


@pytest.fixture(scope="module")
def texts(shared_data):
    """Text in four scripts, cased; small."""
    return [
        str(shared_data / "corpus" / name)
        for name in ("xquad_paragraphs.en.txt", "de/xquad_paragraphs.txt",
                     "zh/xquad_paragraphs.txt", "ar/ud_pud.sents.txt")
    ]  # fmt: skip


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_piece_is_reachable(texts, do_lower_case):
    words = count_words(texts, "sentences", do_lower_case)
    vocab = learn_vocab(words, 6000)
    assert len(vocab) == len(set(vocab)) == 6000
    tokenizer = BertTokenizer(vocab, do_lower_case=do_lower_case)
    ids = {piece: number for number, piece in enumerate(vocab)}

    def tokenized(strings):
        return tokenizer.tokenize(tf.constant(strings)).to_list()

    initial = [piece for piece in vocab[5:] if not piece.startswith("##")]
    assert tokenized(initial) == [[ids[piece]] for piece in initial]
    # A piece within a word follows a letter that makes no longer piece with it.
    left = [piece for piece in vocab[5:] if piece.startswith("##")]
    for letter in (piece for piece in initial if len(piece) == 1 and piece.isalpha()):
        got = tokenized([letter + piece[2:] for piece in left])
        left = [p for p, pieces in zip(left, got, strict=True) if pieces != [ids[letter], ids[p]]]
        if not left:
            break
    assert left == []


def test_the_vocabulary_pays_on_its_own_text(texts):
    """Frequent words become whole: far fewer pieces than characters, and no [UNK]."""
    words = count_words(texts[:1], "sentences", True)
    tokenizer = BertTokenizer(learn_vocab(words, 4000, min_frequency=1))
    text = Path(texts[0]).read_text().split("\n")
    pieces = tokenizer.tokenize(tf.constant(text)).flat_values.numpy()
    assert tokenizer.unk_token_id not in pieces
    assert len(pieces) < 1.3 * sum(words.values())


def test_two_processes_write_the_same_bytes(texts, root):
    """The trainer alone doesn't: it numbers characters as it meets them in a hash table."""
    code = (
        "import sys; from collections import Counter;"
        "from data_tools.build_vocab import learn_vocab;"
        "words = open(sys.argv[1]).read().split();"
        "print('\\n'.join(learn_vocab(Counter(words), 3000)))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, texts[0]], capture_output=True, check=True, cwd=root
        ).stdout
        for _ in range(3)
    ]
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1] == outputs[2]


def test_special_pieces_come_first_in_googles_order():
    vocab = learn_vocab(Counter({"abc": 5, "abd": 4}), 40, num_unused=3)
    unused = ["[unused0]", "[unused1]", "[unused2]"]
    assert vocab[:8] == ["[PAD]", *unused, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert {"a", "##b", "##c", "##d", "ab", "abc", "abd"} <= set(vocab)
    assert not any(piece.startswith("[") for piece in vocab[8:])


def test_characters_are_pieces_by_frequency():
    words = Counter({"ab": 3, "b": 4, "é": 1, "z": 1, "é水": 1})
    assert alphabet_pieces(words, 99, 2) == ["b", "##b", "a", "é", "z"]  # 水 is rare, z is ASCII
    assert alphabet_pieces(words, 4, 2) == ["b", "##b", "a", "é"]


def test_a_pair_must_occur_min_frequency_times():
    words = Counter({"ab": 3, "cd": 2})
    assert {"ab", "cd"} <= set(learn_vocab(words, 100, min_frequency=2))
    assert "cd" not in learn_vocab(words, 100, min_frequency=3)


def test_words_are_the_tokenizers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(f"Dénis's 水火 [MASK]!\n\nÉté été\n{'x' * 200} {'y' * 201}\n")
    words = count_words([str(path)], "sentences", True)
    assert words == {
        "denis": 1, "'": 1, "s": 1, "水": 1, "火": 1, "[": 1, "mask": 1, "]": 1, "!": 1,
        "ete": 2, "x" * 200: 1,
    }  # fmt: skip
    assert count_words([str(path)], "sentences", False)["Été"] == 1


def test_a_file_is_never_replaced_by_another_vocabulary(tmp_path, caplog):
    text, vocab = tmp_path / "a.txt", tmp_path / "new/vocab.txt"
    text.write_text("the cat sat on the mat .\n" * 5)
    build_vocab(str(text), str(vocab), 60)
    before = vocab.read_bytes()
    caplog.set_level("INFO", logger="absl")
    build_vocab(str(text), str(vocab), 60)
    assert "is finished: nothing to do" in caplog.text
    with pytest.raises(InputError, match=r"vocab\.txt holds another vocabulary"):
        build_vocab(str(text), str(vocab), 60, num_unused=2)
    assert vocab.read_bytes() == before
    assert os.listdir(vocab.parent) == ["vocab.txt"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"input_file": "nowhere"}, "--input_file: no file at 'nowhere'"),
        ({"vocab_size": 5}, "--vocab_size=5: no room"),
        ({"min_frequency": 0}, "--min_frequency=0: expected at least 1"),
        ({"num_unused": -1}, "--num_unused=-1: expected at least 0"),
        (
            {"vocab_file": "{}/a.txt/vocab.txt"},
            r"--vocab_file=.*a\.txt/vocab\.txt: cannot be written",
        ),
        ({"vocab_file": "{}"}, "--vocab_file=.*: cannot be written"),
        ({"input_file": "{}/empty.txt"}, "--input_file: no word in .*empty"),
        ({"input_file": "{}/bad.txt"}, r"bad\.txt line 2: not UTF-8"),
    ],
)
def test_bad_input_is_refused(tmp_path, changes, match):
    (tmp_path / "a.txt").write_text("the cat sat .\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.txt").write_bytes(b"a\n\xff\n")
    before = sorted(os.listdir(tmp_path))
    arguments = {"input_file": "{}/a.txt", "vocab_file": "{}/vocab.txt", "vocab_size": 50} | changes
    with pytest.raises(InputError, match=match):
        build_vocab(**{
            name: value.format(tmp_path) if isinstance(value, str) else value
            for name, value in arguments.items()
        })  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == before
