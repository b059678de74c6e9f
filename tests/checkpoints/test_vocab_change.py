"""Tokens are added to a model and removed from it; on all other texts, its outputs are the same."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.checkpoints.convert import convert, keep_tokens
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.models import BertPretrainer
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab

WORDS = "work no play dull jack ja ##ck ##s ##ful a ##l ##l##l 水 ."
VOCAB = [*SPECIAL_TOKENS, "[unused0]", *WORDS.split()]
TABLE, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
SETTINGS = TokenizerSettings()


def save(path, tiny, vocab, extra):
    """Saves a pre-trained model with random weights for a vocabulary."""
    config = replace(tiny.config, vocab_size=len(vocab), max_position_embeddings=24)
    save_model_directory(path, tiny.make("pretrainer", config), vocab, extra=extra)
    return path


@pytest.fixture(scope="module")
def source(tiny, tmp_path_factory):
    return save(tmp_path_factory.mktemp("source") / "bert", tiny, VOCAB, {"sep_token_id": 3})


def tokenize(path, texts):
    """Returns the tokens of texts, and the model's inputs."""
    tokenizer = BertTokenizer.from_pretrained(path)
    inputs = tokenizer(texts, max_seq_length=24)
    inputs["masked_lm_positions"] = np.ones([len(texts), 1], np.int32)
    return [[tokenizer.vocab[index] for index in row] for row in inputs["input_ids"]], inputs


def run_model(path, inputs):
    """Returns the hidden states, the pooled output and the logits of both heads."""
    checkpoint = open_checkpoint(path)
    model = BertPretrainer(checkpoint.config)
    checkpoint.load_into(model)
    outputs = {**model.encoder(inputs), **model(inputs)}
    return {name: np.asarray(value) for name, value in outputs.items()}


def check_same_outputs(old, new, texts):
    """Checks that two models have the same tokens and outputs for texts."""
    (old_tokens, old_inputs), (new_tokens, new_inputs) = (tokenize(p, texts) for p in (old, new))
    assert new_tokens == old_tokens
    before, after = run_model(old, old_inputs), run_model(new, new_inputs)
    vocab = {token: index for index, token in enumerate(open_checkpoint(old).vocab)}
    common = [(vocab[t], i) for i, t in enumerate(open_checkpoint(new).vocab) if t in vocab]
    ours, theirs = map(list, zip(*common, strict=True))
    for name in before:
        if name == "masked_lm_logits":  # The product may sum in another order.
            np.testing.assert_allclose(
                after[name][..., theirs], before[name][..., ours], rtol=1e-5, atol=1e-5
            )
        else:
            assert np.array_equal(before[name], after[name]), name


def change(run_program, source, target, **flags):
    return run_program("convert.py", str(source), str(target), **flags)


@pytest.mark.slow
def test_new_rows_are_the_means_of_their_subwords(source, tmp_path, run_program):
    (tmp_path / "new.txt").write_text("jacks\n##cks\nworkful\nxyz\n", newline="\r\n")
    done = change(run_program, source, tmp_path / "grown", add_tokens=tmp_path / "new.txt")
    assert done.returncode == 0, done.stderr
    assert (
        "the vocabulary has 24 tokens, of which 4 are new; that of the source has 20" in done.stderr
    )
    assert load_vocab(tmp_path / "grown" / "vocab.txt") == [
        *VOCAB,
        *["jacks", "##cks", "workful", "xyz"],
    ]
    old, new = (load_file(p / "model.safetensors") for p in (source, tmp_path / "grown"))
    subwords = (["jack", "##s"], ["##ck", "##s"], ["work", "##ful"], ["[UNK]"])
    for name, value in old.items():
        if name in (TABLE, BIAS):
            means = [value[[VOCAB.index(token) for token in row]].mean(0) for row in subwords]
            np.testing.assert_allclose(new[name][20:], means, rtol=1e-6)
            assert np.array_equal(new[name][:20], value)
        else:
            assert np.array_equal(new[name], value), name
    check_same_outputs(
        source, tmp_path / "grown", ["No work , dull jack!", "worksful ja ck 水 zzz"]
    )
    tokens, _ = tokenize(tmp_path / "grown", ["Jacks jacksful jajacks workful xyz"])
    assert tokens == [["[CLS]", "jacks", "jacks", "##ful", "[UNK]", "workful", "xyz", "[SEP]"]]


def test_ids_in_other_settings_follow_their_tokens(tiny, tmp_path):
    vocab = ["work", *VOCAB[:6], *VOCAB[7:]]
    extra = {"sep_token_id": 4, "bos_token_id": 0, "eos_token_id": None}
    save(tmp_path / "a", tiny, vocab, extra)
    convert(
        tmp_path / "a",
        tmp_path / "b",
        change_vocab=lambda vocab, settings: keep_tokens(vocab, settings, ["play"]),
    )
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    names = ("pad_token_id", "sep_token_id", "bos_token_id", "eos_token_id", "vocab_size")
    assert [written[name] for name in names] == [0, 3, None, None, 6]


def test_tokens_of_a_corpus_are_kept_and_its_outputs_stay(source, tmp_path, run_program):
    corpus = "Jack works .\nno jackpot , jacks水 all\n"
    (tmp_path / "text.txt").write_text(corpus)
    (tmp_path / "more.jsonl").write_text('{"body": "dull"}\n')
    done = change(run_program, source, tmp_path / "a", keep_corpus=tmp_path / "*.txt")
    assert done.returncode == 0, done.stderr
    # "jackpot" is [UNK] after "jack"; "水" is a word of its own; "a" starts "all".
    words = ["work", "no", "jack", "##s", "a", "##l", "水", "."]
    assert load_vocab(tmp_path / "a" / "vocab.txt") == [*SPECIAL_TOKENS, *words]
    check_same_outputs(source, tmp_path / "a", corpus.splitlines())
    done = change(
        run_program,
        source,
        tmp_path / "b",
        keep_corpus=tmp_path / "more.jsonl",
        input_format="jsonl",
        text_field="body",
    )
    assert done.returncode == 0, done.stderr
    assert load_vocab(tmp_path / "b" / "vocab.txt") == [*SPECIAL_TOKENS, "dull"]


@pytest.mark.parametrize(
    ("flag", "content", "expected"),
    [
        ("add_tokens", "jacks\nnew york\n", ", line 2: 'new york' contains white space"),
        ("user_tokens", "", ": is empty; expected one token per line"),
        ("user_tokens", "[A]\n[A]\n", ": the token '[A]' is on lines 1 and 2; expected each"),
        ("add_tokens", "jacks\nwork\n", ": 'work' is already in the vocabulary; expected only new"),
        ("add_tokens", "##.\n", ": '##.' would never be used, because the tokenizer makes 'a .'"),
        ("keep_corpus", "\n \n", ": contains no words; expected text"),
        ("vocab_file", "\n".join(VOCAB), ": is the vocabulary of the model; expected additional"),
        ("vocab_file", "\n".join(VOCAB[:-1]), ": has 19 tokens, and the model 20; expected the"),
        (
            "vocab_file",
            "\n".join([*VOCAB, "new"]).replace("dull", "doll"),
            ": line 10 is 'doll', not 'dull'; expected the vocabulary of the model",
        ),
    ],
)
def test_bad_files_give_one_line_and_no_output(
    source, tmp_path, run_program, flag, content, expected
):
    file = tmp_path / "file.txt"
    file.write_text(content)
    done = change(run_program, source, tmp_path / "out", **{flag: file})
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert str(file) in line
    assert expected in line
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["file.txt"]


def test_bad_flags_give_one_line_and_no_output(source, tmp_path, run_program):
    (tmp_path / "a.txt").write_text("jacks\n")
    without_vocab = source.parent / "none"
    without_vocab.mkdir()
    for name in ("config.json", "model.safetensors"):
        (without_vocab / name).write_bytes((source / name).read_bytes())
    for path, flags, expected in (
        (source, {"add_tokens": "a.txt", "keep_corpus": "a.txt"}, "--add_tokens and --keep_corpus"),
        (source, {"add_tokens": "b.txt"}, "b.txt: cannot be read: No such file or directory"),
        (source, {"keep_corpus": "b*.txt"}, "--keep_corpus: no file matches 'b*.txt'; expected a"),
        (source, {"add_tokens": "a.txt", "text_field": "b"}, "--text_field: has no effect without"),
        (without_vocab, {"add_tokens": "a.txt"}, "none: has no vocabulary; the tokens cannot be"),
    ):
        done = run_program("convert.py", str(path), "out", cwd=tmp_path, **flags)
        assert done.returncode == 1
        assert expected in done.stderr.splitlines()[-1]
    assert os.listdir(tmp_path) == ["a.txt"]
