"""User tokens: read from the files of all formats, written to them, and added by convert."""

import dataclasses
import json

import numpy as np
import pytest

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.text.offsets import byte_to_char_offsets
from keras_bert.text.settings import TokenizerSettings, UserToken
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import load_vocab
from tests.checkpoints.conftest import edit
from tests.other_formats import write_tf1

OWN = (UserToken("[URL]"), UserToken("<ent>", normalized=True, special=True), UserToken("xxbos"))


def save(tiny, path, tokens=(), write=save_model_directory):
    """Saves a model whose vocabulary has user tokens at its end."""
    vocab = [*tiny.vocab, *(token.content for token in tokens)]
    config = dataclasses.replace(tiny.config, vocab_size=len(vocab))
    write(path, tiny.make("pretrainer", config), vocab, TokenizerSettings(user_tokens=tokens))
    return path


def tokenize(path, texts):
    tokenizer = BertTokenizer.from_pretrained(path)
    return [
        [tokenizer.vocab[index] for index in row] for row in tokenizer.tokenize(texts).to_list()
    ]


def test_user_tokens_are_read_from_a_tf1_checkpoint(tiny, tmp_path):
    path = save(tiny, tmp_path / "a", OWN, write=write_tf1)
    assert open_checkpoint(path).tokenizer_settings.user_tokens == OWN
    assert tokenize(path, ["all[URL]xxbos <ENT>"]) == [["all", "[URL]", "xxbos", "<ent>"]]


def test_tokens_at_the_end_are_added_tokens_and_not_subwords(tiny, tmp_path):
    without = save(tiny, tmp_path / "none")
    for file in without.glob("*.json"):
        assert "user_tokens" not in file.read_text()
        assert "added_tokens_decoder" not in file.read_text()
    path = save(tiny, tmp_path / "a", OWN)
    fast = json.loads((path / "tokenizer.json").read_text())
    assert [*fast["model"]["vocab"]] == tiny.vocab
    assert [token["content"] for token in fast["added_tokens"]][5:] == ["[URL]", "<ent>", "xxbos"]
    assert load_vocab(path / "vocab.txt") == [*tiny.vocab, "[URL]", "<ent>", "xxbos"]
    decoder = json.loads((path / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert [*decoder] == [*map(str, (0, 1, 2, 3, 4, *range(len(tiny.vocab), len(tiny.vocab) + 3)))]


@pytest.mark.parametrize(
    ("removed", "changes", "expected"),
    [
        # Each file alone is enough; ids follow the vocabulary.
        (("tokenizer.json",), {}, OWN),
        (("tokenizer_config.json",), {}, OWN),
        (("vocab.txt", "tokenizer_config.json"), {}, OWN),
        (
            ("tokenizer.json", "tokenizer_config.json"),
            {"added_tokens.json": {"[URL]": 17, "xxbos": 18, "[CLS]": 2}},
            (UserToken("[URL]", True), UserToken("xxbos", True)),
        ),
        (
            ("tokenizer.json", "tokenizer_config.json"),
            {"tokenizer_config.json": {"additional_special_tokens": ["[URL]", "<ent>", "[SEP]"]}},
            (UserToken("[URL]", special=True), UserToken("<ent>", special=True)),
        ),
        (
            ("tokenizer.json", "tokenizer_config.json"),
            {"tokenizer_config.json": {"extra_special_tokens": {"url_token": "[URL]"}}},
            (UserToken("[URL]", special=True),),
        ),
        # Older files name the tokens twice.
        ((), {"added_tokens.json": {"[URL]": 17}}, OWN),
        ((), {"tokenizer_config.json": {"additional_special_tokens": ["<ent>"]}}, OWN),
    ],
)
def test_each_file_of_hugging_face_is_read(tiny, tmp_path, removed, changes, expected):
    assert len(tiny.vocab) == 17
    path = save(tiny, tmp_path / "a", OWN)
    # As in transformers, vocab.txt may lack the added tokens.
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in tiny.vocab))
    for name in removed:
        (path / name).unlink()
    for name, content in changes.items():
        edit(path / name, **content)
    edit(path / "config.json", vocab_size=17 + len(expected))
    opened = open_checkpoint(path)
    assert opened.tokenizer_mismatch is None
    assert opened.tokenizer_settings.user_tokens == expected
    assert opened.vocab == [*tiny.vocab, *(token.content for token in expected)]


def test_added_token_may_be_a_token_of_the_vocabulary(tiny, tmp_path):
    path = save(tiny, tmp_path / "a")
    edit(path / "tokenizer_config.json", additional_special_tokens=["jack"])
    opened = open_checkpoint(path)
    assert opened.vocab == tiny.vocab
    assert opened.tokenizer_settings.user_tokens == (UserToken("jack", special=True),)
    assert tokenize(path, ["alljackall Jack"]) == [["all", "jack", "all", "jack"]]


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ({"id": 17, "rstrip": True}, "'[URL]' has rstrip true; expected false"),
        ({"id": 19}, "'[URL]' has the id 19; expected 17, as in the vocabulary or directly after"),
        ({"id": 17, "content": "new york"}, "user token 'new york': contains white space"),
        ({}, "the added tokens cannot be read (KeyError('id'))"),
    ],
)
def test_unsupported_added_tokens_give_a_reason(tiny, tmp_path, token, reason):
    path = save(tiny, tmp_path / "a", OWN[:1])
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in tiny.vocab))
    (path / "tokenizer_config.json").unlink()
    edit(path / "tokenizer.json", added_tokens=[{"content": "[URL]"} | token])
    opened = open_checkpoint(path)
    assert opened.vocab is None
    assert reason in opened.tokenizer_mismatch
    assert "\n" not in opened.tokenizer_mismatch


@pytest.mark.slow
def test_convert_adds_user_tokens(tiny, tmp_path, run_program):
    source = save(tiny, tmp_path / "a")
    (tmp_path / "own.txt").write_text("<work>\njack\n")
    done = run_program(
        "convert.py",
        str(source),
        str(tmp_path / "b"),
        user_tokens=tmp_path / "own.txt",
        do_lower_case="true",
    )
    assert done.returncode == 0, done.stderr
    assert tokenize(tmp_path / "b", ["a<work>jacks"])[0][:3] == ["a", "<work>", "jack"]


def test_user_tokens_are_kept_when_a_vocabulary_shrinks(tiny, tmp_path, run_program):
    source = save(tiny, tmp_path / "a", OWN)
    (tmp_path / "text.txt").write_text("all[URL] work\n")
    done = run_program(
        "convert.py", str(source), str(tmp_path / "b"), keep_corpus=tmp_path / "text.txt"
    )
    assert done.returncode == 0, done.stderr
    opened = open_checkpoint(tmp_path / "b")
    assert opened.vocab == [*tiny.vocab[:5], "all", "work", "[URL]", "<ent>", "xxbos"]
    assert opened.tokenizer_settings.user_tokens == OWN


@pytest.mark.slow
def test_transformers_computes_the_same_ids_in_both_directions(tiny, tmp_path, run_in_peers):
    words = "[URL] [url] <ent> <ENT> [USER] xxbos . É"
    words = [*tiny.vocab[5:15], *words.split(), " "]
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(words, random.integers(1, 12))) for _ in range(300)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    ours = save(tiny, tmp_path / "ours", OWN)
    path = save(tiny, tmp_path / "theirs")
    tokens = ["[URL]", {"content": "<ent>", "normalized": False}, "xxbos"]
    tokens.append({"content": "[USER]", "special": True})
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    files = [tmp_path / name for name in ("tokens.json", "texts.json", "out.json")]
    run_in_peers("add_tokens_transformers.py", path, *files, ours)
    found = json.loads(files[-1].read_text())
    assert BertTokenizer.from_pretrained(ours).tokenize(texts).to_list() == found["ours"]
    edit(path / "config.json", vocab_size=len(tiny.vocab) + 4)
    tokenizer = BertTokenizer.from_pretrained(path)
    assert len(tokenizer.settings.user_tokens) == 4
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    places = [byte_to_char_offsets(texts, each).to_list() for each in (starts, ends)]
    assert ids.to_list() == found["ids"]
    offsets = [
        [[*pair] for pair in zip(first, last, strict=True)]
        for first, last in zip(*places, strict=True)
    ]
    assert offsets == found["offsets"]
