"""Models of the Hugging Face Hub: names, downloaded files, errors. Nothing uses a network."""

import fnmatch
import shutil
import sys

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors

from keras_bert.checkpoints.hub import local_model
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertEncoder
from keras_bert.programs.adapt import adapt
from keras_bert.programs.pretrain import pretrain
from keras_bert.tasks.fill_mask import MaskFiller
from keras_bert.tasks.load import load
from keras_bert.text.tokenizer import BertTokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(pretrained, monkeypatch, tmp_path):
    """Returns the empty working folder of a process that has bert and org/bert in its cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("bert", "org--bert"):
        model = tmp_path / "cache" / f"models--{name}"
        (model / "refs").mkdir(parents=True)
        (model / "refs" / "main").write_text(COMMIT)
        shutil.copytree(pretrained, model / "snapshots" / COMMIT)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("name", ["bert", "org/bert", "hf://bert", "hf://org/bert"])
def test_name_opens_the_model_in_the_cache(cache, pretrained, name):
    folder = local_model(name, hub_names=True)
    assert folder.name == COMMIT
    assert f"models--{name.removeprefix('hf://').replace('/', '--')}" in folder.parts
    expected = open_checkpoint(pretrained)
    for opened in (load(name), MaskFiller.from_pretrained(name)):
        assert opened.tokenizer.vocab == expected.vocab
    assert BertTokenizer.from_pretrained(name).vocab == expected.vocab
    model = BertEncoder(expected.config)
    expected.load_into(model)
    for found, weight in zip(BertEncoder.from_pretrained(name).weights, model.weights, strict=True):
        np.testing.assert_array_equal(found, weight)


def test_functions_of_programs_start_from_a_name(cache, capsys):
    (cache / "in").mkdir()
    (cache / "in" / "a.txt").write_text("A good film. A bad book.")
    # The model of this name is opened.
    with pytest.raises(InputError, match="the model has only 32 positions"):
        adapt("in", "org/bert", output_dir="out")
    sizes = {"max_seq_length": 16, "max_predictions_per_seq": 2}
    assert pretrain([], init_checkpoint="org/bert", dry_run=True, **sizes) == {}
    assert "parameters" in capsys.readouterr().out


def test_path_is_opened_rather_than_a_name(cache, tiny):
    (cache / "bert").mkdir()
    (cache / "org").mkdir()
    (cache / "model.ckpt.index").touch()
    for path in ("bert", "org/bert", "model.ckpt", cache / "nothing", "./bert", "a/b/c"):
        assert str(local_model(path, hub_names=True)) == str(path).removeprefix("./")
    with pytest.raises(InputError, match=r"^org/bert: no such checkpoint; expected .* hf://NAME"):
        MaskFiller.from_pretrained("org/bert")


def test_programs_take_names_only_with_their_prefix(cache, run_program):
    done = run_program("convert.py", "bert", "out", cwd=cache)
    assert (done.returncode, "bert: no such checkpoint; expected" in done.stderr) == (1, True)
    done = run_program("convert.py", "hf://bert", "out", cwd=cache)
    assert done.returncode == 0, done.stderr
    assert (cache / "out" / "model.safetensors").is_file()


# --- files ---

BERT = ["README.md", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
BERT += ["model.safetensors"]
SENTENCES = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
SENTENCES += ["config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
SHARDS += ["model.safetensors.index.json"]
OTHERS = ["pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "2_Dense/pytorch_model.bin"]
OTHERS += ["coreml/Manifest.json", "openvino/model.bin", "model.fp16.safetensors", "data.json"]
KERAS_HUB = ["config.json", "model.weights.h5", "task.json", "tokenizer.json"]
KERAS_HUB += ["assets/tokenizer/vocabulary.txt"]
TF1 = ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
TF1 += ["vocab.txt"]


@pytest.fixture
def repository(monkeypatch, tmp_path):
    """Returns a function that makes the Hub have one model with some files, or raise an error."""

    def make(files, error=None):
        def snapshot_download(name, *, allow_patterns):
            if error:
                raise error
            for file in files:
                if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / file).touch()
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    return make


@pytest.mark.parametrize(
    ("files", "others"),
    [
        (BERT[1:] + SENTENCES, [*OTHERS, "README.md", "model.weights.h5", "bert_model.ckpt.index"]),
        (BERT[1:-1] + SHARDS, OTHERS),
        (KERAS_HUB, OTHERS),
        (TF1, OTHERS),
    ],
    ids=["sentence_transformers", "shards", "keras_hub", "tf1"],
)
def test_only_the_files_of_one_format_are_downloaded(repository, tmp_path, files, others):
    repository([*files, *others])
    assert local_model("hf://org/bert") == tmp_path
    found = (path for path in tmp_path.rglob("*") if path.is_file())
    assert {str(path.relative_to(tmp_path)) for path in found} == {*files}


# --- errors ---


def test_model_that_is_not_in_the_cache_of_a_machine_without_network(cache):
    for name, where in (("org/other", "no such path, and the"), ("hf://org/other", "the")):
        message = rf"^{name}: {where} model on the Hub cannot be downloaded \(LocalEntryNotFound"
        with pytest.raises(InputError, match=message) as caught:
            MaskFiller.from_pretrained(name)
        command = "hf download org/other --local-dir DIR"
        assert str(caught.value).endswith(command), caught.value


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        (["config.json", "pytorch_model.bin"], None, r"has no model\.safetensors; .*'org/x'\)"),
        ([], errors.RepositoryNotFoundError, "does not exist, or is private; .*: hf auth login$"),
        ([], TimeoutError("one\ntwo"), r"cannot be downloaded \(TimeoutError: one\); expected a c"),
    ],
    ids=["pickle", "unknown", "timeout"],
)
def test_model_that_cannot_be_downloaded(repository, files, error, message):
    repository(files, error.__new__(error) if isinstance(error, type) else error)
    with pytest.raises(InputError, match=message):
        open_checkpoint("hf://org/x")


@pytest.mark.parametrize("name", ["hf://", "hf://a/b/c", "hf://a--b", "hf://bert.git", "hf://-a"])
def test_invalid_name(name):
    with pytest.raises(InputError, match=f"^{name}: expected hf://NAME or hf://ORGAN"):
        open_checkpoint(name)


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"without the package .*: pip install huggingface_hub$"):
        open_checkpoint("hf://org/x")
