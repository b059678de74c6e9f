"""Tests of learning a vocabulary: Google's order, reproducible bytes, reachable tokens."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_tools.build_vocab import (
    VocabSettings,
    alphabet_tokens,
    build_vocab,
    count_words,
    learn_vocab,
)
from data_tools.corpus import Reading
from data_tools.lines import OddInput
from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab
from tests.data_tools.conftest import TOKENIZERS


@pytest.fixture(scope="module")
def texts(shared_data):
    """Returns small cased text files in four scripts."""
    return [
        str(shared_data / "corpus" / name)
        for name in ("xquad_paragraphs.en.txt", "de/xquad_paragraphs.txt",
                     "zh/xquad_paragraphs.txt", "ar/ud_pud.sents.txt")
    ]  # fmt: skip


def counted(paths, do_lower_case=True, odd=None, **reading):
    odd = OddInput() if odd is None else odd
    paths = [str(path) for path in paths]
    return count_words(paths, Reading(**reading), TokenizerSettings(do_lower_case), odd)


def not_reached(vocab, do_lower_case):
    """Returns the tokens that greedy longest match does not find in texts made to contain them."""
    tokenizer = BertTokenizer(vocab, do_lower_case=do_lower_case)
    ids = {token: number for number, token in enumerate(vocab)}
    tokens = [t for t in vocab if t not in SPECIAL_TOKENS and not t.startswith("[unused")]
    initial = [token for token in tokens if not token.startswith("##")]
    inner = [token for token in tokens if token.startswith("##")]
    # If no longer token starts with `before`, the text after it is split on its own.
    opens = {token[:end] for token in initial for end in range(1, len(token))}
    before = min((t for t in initial if t not in opens and t[-1].isalpha() and len(t) > 1), key=len)
    got = tokenizer.tokenize(initial + [before + token[2:] for token in inner]).to_list()
    expected = [[ids[token]] for token in initial]
    expected += [[ids[before], ids[token]] for token in inner]
    return [t for t, a, b in zip(initial + inner, got, expected, strict=True) if a != b]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_token_is_reachable(texts, do_lower_case):
    """Frequent words are single tokens: fewer than 1.3 tokens per word of the English text."""
    vocab = learn_vocab(counted(texts, do_lower_case), 12000)
    assert len(vocab) == len(set(vocab)) == 12000
    assert sum(token.startswith("##") for token in vocab) > 1000
    assert not_reached(vocab, do_lower_case) == []
    tokenizer = BertTokenizer(vocab, do_lower_case=do_lower_case)
    ids = tokenizer.tokenize(Path(texts[0]).read_text().split("\n")).flat_values.numpy()
    assert len(ids) < 1.3 * counted(texts[:1], do_lower_case).total()


def test_two_processes_write_the_same_bytes(texts, root):
    """The trainer alone does not: it numbers characters in the order of a hash table."""
    code = (
        "import sys; from collections import Counter;"
        "from data_tools.build_vocab import learn_vocab;"
        "words = open(sys.argv[1]).read().split();"
        "print('\\n'.join(learn_vocab(Counter(words), 3000)))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, texts[0]],
            capture_output=True,
            check=True,
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    ]
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1]


def test_order_of_tokens_and_minimum_frequency():
    vocab = learn_vocab(Counter({"abc": 5, "abd": 4}), 40)
    assert vocab[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert {"a", "##b", "##c", "##d", "ab", "abc", "abd"} <= set(vocab)
    assert not any(token.startswith("[") for token in vocab[5:])
    words = Counter({"ab": 3, "b": 4, "é": 1, "z": 1, "é水": 1})
    assert alphabet_tokens(words, 99, 2) == ["b", "##b", "a", "é", "z"]  # 水 is rare, z is ASCII
    assert alphabet_tokens(words, 4, 2) == ["b", "##b", "a", "é"]
    words = Counter({"ab": 3, "cd": 2})
    assert {"ab", "cd"} <= set(learn_vocab(words, 100, min_frequency=2))
    assert "cd" not in learn_vocab(words, 100, min_frequency=3)


def test_words_are_those_of_the_tokenizer(tmp_path):
    """NUL is dropped like a control character, and undecodable bytes are counted."""
    content = f"Dénis's 水火 [MASK]!\n\nÉté été\n{'x' * 200} {'y' * 201}\nthe\0cat \0\nΟΔΟΣ ΑΣ\n"
    (tmp_path / "a.txt").write_bytes(content.encode() + b"mat \xff\n")
    odd, reading = OddInput(), {"max_bad_line_share": 0.5}
    words = counted([tmp_path / "a.txt"], odd=odd, **reading)
    once = ("denis", "'", "s", *"水火[!]", "mask", "x" * 200, "thecat", "οδος", "ας", "mat")
    assert words == {**dict.fromkeys(once, 1), "ete": 2}
    assert odd["undecodable_bytes"]["count"] == 1
    assert counted([tmp_path / "a.txt"], do_lower_case=False, **reading)["Été"] == 1


@pytest.fixture
def small(tmp_path):
    """Creates a vocabulary with three unused tokens, and a text with words that it splits."""
    tokens = ["[PAD]", "[unused0]", "[unused1]", "[unused7]", *SPECIAL_TOKENS[1:]]
    tokens += ["the", "cat", *"abcdehilopt", *("##" + letter for letter in "abcdehilopt")]
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    (tmp_path / "a.txt").write_text("the cat ate the ctd . Cat bladé\nblade ate ate 水 水 水 水\n")
    return tmp_path


def test_new_words_replace_the_unused_tokens(small):
    text, old, path = (str(small / name) for name in ("a.txt", "vocab.txt", "new.txt"))
    new = build_vocab(text, path, VocabSettings(extend_vocab=old))
    # 水 is unknown, ate and blade are split; ctd is too rare; the and cat are single tokens.
    assert new[1:4] == ["水", "ate", "blade"]
    assert new[:1] + new[4:] == load_vocab(old)[:1] + load_vocab(old)[4:]
    tokens = BertTokenizer(path).tokenize(["Ate blade 水 cat"]).to_list()
    assert tokens == [[2, 3, 1, new.index("cat")]]
    new = build_vocab(text, path + "1", VocabSettings(extend_vocab=old, num_new_words=1))
    assert new[1:4] == ["水", "[unused1]", "[unused7]"]
    new = build_vocab(text, path + "2", VocabSettings(extend_vocab=old, min_frequency=3))
    assert new[1:4] == ["水", "ate", "[unused7]"]


def test_words_beyond_the_unused_tokens_are_appended(small):
    text, old, path = (str(small / name) for name in ("a.txt", "vocab.txt", "new.txt"))
    Path(text).write_text("ate ate ate blade blade 水 水 水 水 tea tea lot lot lot lot lot\n" * 2)
    extension = VocabSettings(extend_vocab=old, num_new_words=4)
    new = build_vocab(text, path, extension)
    assert new[1:4] == ["lot", "水", "ate"]
    assert new[4:] == [*load_vocab(old)[4:], "blade"]
    tokens = [token for token in load_vocab(old) if not token.startswith("[unused")]
    Path(old).write_text("".join(token + "\n" for token in tokens))
    new = build_vocab(text, path + "2", VocabSettings(extend_vocab=old, num_new_words=2))
    assert new == [*tokens, "lot", "水"]


@pytest.mark.parametrize(("changes", "words"), TOKENIZERS)
def test_vocabulary_of_each_tokenizer(tmp_path, changes, words):
    text, vocab_file = tmp_path / "a.txt", tmp_path / "vocab.txt"
    text.write_text("Höhe 北京\n" * 9, encoding="utf-8")
    vocab = build_vocab(str(text), str(vocab_file), VocabSettings(60, **changes))
    assert words <= {*vocab}
    tokenizer = BertTokenizer(vocab, **TokenizerSettings(**changes).to_dict())
    tokens = [vocab[token_id] for token_id in tokenizer.tokenize(["Höhe 北京"]).values.numpy()]
    assert {*tokens} == words

    old, extended = tmp_path / "old.txt", tmp_path / "new.txt"
    cased = {False: ["A", "a"]}.get(changes.get("do_lower_case"), [])
    free = [f"[unused{number}]" for number in range(4)]
    old.write_text("".join(f"{token}\n" for token in [*SPECIAL_TOKENS, *free, *cased]))
    extension = VocabSettings(extend_vocab=str(old), **changes)
    assert words <= {*build_vocab(str(text), str(extended), extension)}


@pytest.mark.parametrize(
    ("tokens", "changes", "match"),
    [
        (["the"], {}, r"vocab\.txt: 0 \[unusedN\] tokens; expected at least one"),
        (["[unused3]", "The"], {}, r": cased \(it contains 'The'\); .* or --nodo_lower_case"),
        (
            ["[unused3]", "the"],
            {"do_lower_case": False},
            r": uncased \(it contains 'the' and no capital letter\); .* or --do_lower_case",
        ),
    ],
)
def test_vocabulary_that_cannot_be_extended_is_rejected(tmp_path, tokens, changes, match):
    old, text = tmp_path / "vocab.txt", tmp_path / "a.txt"
    old.write_text("".join(token + "\n" for token in [*SPECIAL_TOKENS, *tokens]))
    text.write_text("the cat\n")
    with pytest.raises(InputError, match=match):
        build_vocab(
            str(text), str(tmp_path / "new.txt"), VocabSettings(extend_vocab=str(old), **changes)
        )
    assert not (tmp_path / "new.txt").exists()


def test_program_extends_or_learns_a_vocabulary(small, run_program):
    def build(name, *arguments):
        files = {"input_file": small / "a.txt", "vocab_file": small / name}
        return run_program("build_vocab.py", *arguments, **files)

    extends = f"--extend_vocab={small / 'vocab.txt'}"
    done = [
        build("b.txt", extends, "--min_frequency=2"),
        build("c.txt", "--vocab_size=60", "--input_format=prose"),
        build("d.txt", extends, "--vocab_size=9"),
        build("d.txt", "--num_new_words=9"),
    ]
    errors = [each.stderr for each in done]
    assert [each.returncode for each in done] == [0, 0, 1, 1], errors
    assert "blade" in load_vocab(small / "b.txt")
    assert len(load_vocab(small / "c.txt")) <= 60
    assert "--vocab_size: has no effect with --extend_vocab; expected only one" in errors[2]
    assert len(errors[2].splitlines()) == len(errors[3].splitlines()) == 1
    assert not (small / "d.txt").exists()


def test_existing_file_is_never_replaced_by_another_vocabulary(tmp_path, caplog):
    text, vocab = tmp_path / "a.txt", tmp_path / "new/vocab.txt"
    text.write_text("the cat sat on the mat .\n" * 5)
    build_vocab(str(text), str(vocab), VocabSettings(60))
    before = vocab.read_bytes()
    caplog.set_level("INFO", logger="absl")
    build_vocab(str(text), str(vocab), VocabSettings(60))
    assert "already contains this vocabulary; the file is unchanged" in caplog.text
    with pytest.raises(InputError, match=r"vocab\.txt: holds another vocabulary"):
        build_vocab(str(text), str(vocab), VocabSettings(20))
    assert vocab.read_bytes() == before
    assert os.listdir(vocab.parent) == ["vocab.txt"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"vocab_size": 5}, "--vocab_size=5: no room"),
        ({"min_frequency": 0}, "--min_frequency=0: expected a whole number of at least 1"),
        ({"vocab_file": "{}/a.txt/vocab.txt"}, r"a\.txt/vocab\.txt: "),
        (
            {"input_file": "{}/empty.txt", "vocab_file": "{}/new/vocab.txt"},
            "--input_file: no words in .*empty",
        ),
    ],
)
def test_invalid_input_is_rejected(tmp_path, changes, match):
    (tmp_path / "a.txt").write_text("the cat sat .\n")
    (tmp_path / "empty.txt").touch()
    before = sorted(os.listdir(tmp_path))
    files = {"input_file": "{}/a.txt", "vocab_file": "{}/vocab.txt"}
    files = {name: changes.get(name, path).format(tmp_path) for name, path in files.items()}
    changes = {name: value for name, value in changes.items() if name not in files}
    with pytest.raises(InputError, match=match):
        build_vocab(**files, settings=VocabSettings(**{"vocab_size": 50} | changes))
    assert sorted(os.listdir(tmp_path)) == before


def test_too_small_corpus_is_reported(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("abc bca cab\n" * 9)
    build_vocab(str(tmp_path / "a.txt"), str(tmp_path / "v.txt"), VocabSettings(40))
    assert "tokens, fewer than --vocab_size=40; at most half" in caplog.text
