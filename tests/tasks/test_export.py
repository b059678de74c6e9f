"""Tests exports: each task's folder can be served and has a model card and settings."""

import importlib.util
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export.task_export import FORMATS
from keras_bert.tasks import CLASSES
from keras_bert.tasks.load import load
from keras_bert.tasks.model_export import check_unused, export, export_run
from keras_bert.tasks.prepared import short_rows
from keras_bert.tasks.settings import ExportOptions, NerSettings
from tests.export.conftest import make_task


def read_info(folder: Path) -> dict:
    return json.loads((folder / "export.json").read_text())


@pytest.fixture(scope="module")
def exports(runs: dict, tmp_path_factory) -> dict[str, Path]:
    """Returns an export of each task."""
    root = tmp_path_factory.mktemp("exports")
    return {
        task: export(ExportOptions(str(run), str(root / task / "1"))) for task, run in runs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", CLASSES)
def test_each_task_is_served_with_the_settings_of_its_run(task: str, exports: dict):
    folder = exports[task]
    info = read_info(folder)
    assert info["task"] == task
    loaded = tf.saved_model.load(str(folder))
    assert set(loaded.signatures) == set(info["signatures"]) >= {"serving_default", "token_ids"}
    for name, signature in info["signatures"].items():
        request = {
            key: tf.constant([["a", "b"]] if len(shape) == 2 else ["a b?"])
            if kind == "string"
            else tf.ones([1, 5], tf.int32)
            for key, (kind, shape) in signature["inputs"].items()
        }
        answer = loaded.signatures[name](**request)
        assert set(answer) == set(signature["outputs"])
        assert {value.shape[0] for value in answer.values()} == {1}
    card = (folder / "README.md").read_text()
    assert all(f"| `{name}` | output |" in card for name in info["signatures"])
    assert "The scores were measured on the data listed above" in card
    # The model accepts the example request of the card.
    shown = card.partition("curl -d '")[2].partition("'")[0]
    (instance,) = json.loads(shown)["instances"]
    assert set(instance) == set(info["signatures"]["serving_default"]["inputs"])
    assert ("[MASK]" in shown) == (task == "fill_mask")
    assert (folder / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0
    expected = {
        "classification": {"pair": True, "max_seq_length": 40, "labels": ["no", "yes"]},
        "question_answering": {
            "max_seq_length": 80,
            "version_2_with_negative": True,
            "null_score_diff_threshold": -1.5,
        },
    }
    assert expected.get(task, {}).items() <= info.items()
    if task == "classification":
        assert "`no`, `yes`" in card
        assert "| learning_rate | 0.0001 |" in card
        assert "| loss | 0.5000 |" in card


LONG = " ".join("abcdefghijklmnop") * 9  # More tokens than any model has positions.
TEXTS = ["a b?", "", f"{LONG} z", "é \ud800 😀 c"]
# {task: arguments of calls of `predict`}
INPUTS = {
    "classification": [((TEXTS, TEXTS[::-1]),)],
    "question_answering": [(["a?", "b c", "", LONG], TEXTS)],
    "ner": [(TEXTS,), ([["ab", "c"], [], LONG.split(), ["\u200b", "x"]],)],
    "fill_mask": [([f"{text} [MASK] a[MASK]" for text in TEXTS],)],
    "embedding": [(TEXTS,)],
}
# {task: arguments of `evaluate`}
SCORED = {
    "classification": ((TEXTS, TEXTS[::-1]), ["yes", "no", "no", "yes"]),
    "ner": ([["ab", "c"], ["d"]], [["B-PER", "I-PER"], ["O"]]),
    "embedding": ((["a b", "c", "d e"], ["b", "c c", "f"]), [0.1, 0.9, 0.4]),
}
ANSWER = {"text": "a", "start": 0}
TRAINED = SCORED | {"question_answering": (["a?"], ["a"], [ANSWER]), "fill_mask": (TEXTS,)}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        for one, two in zip(map(np.asarray, found[name]), map(np.asarray, rows), strict=True):
            if two.dtype.kind == "f":
                np.testing.assert_allclose(one, two, atol=2e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(one, two, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("task", CLASSES)
def test_saved_and_exported_models_give_the_same_predictions(task, runs, exports, tmp_path):
    model = load(runs[task])
    model.save_pretrained(tmp_path / "saved")
    saved, exported = load(tmp_path / "saved"), load(exports[task])
    for other in (saved, exported):
        assert type(other) is type(model)
        assert other.settings == model.settings
        for inputs in INPUTS[task]:
            assert_same(other.predict(*inputs, batch_size=3), model.predict(*inputs))
            empty = [([], []) if isinstance(each, tuple) else [] for each in inputs]
            assert_same(other.predict(*empty), model.predict(*empty))
    if task in SCORED:
        expected = saved.evaluate(*SCORED[task])
        assert exported.evaluate(*SCORED[task]) == pytest.approx(expected, abs=1e-5)
    for call in (
        lambda: exported.model,
        lambda: exported.fit(*TRAINED[task]),
        lambda: exported.save_pretrained(tmp_path / "out"),
        lambda: exported.export(tmp_path / "2"),
    ):
        with pytest.raises(InputError, match="an exported model has no Keras model"):
            call()
    if task == "classification":
        with pytest.raises(
            InputError, match="got text; the exported model expects text, text_pair"
        ):
            exported.predict(["a"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "fill_mask"])
def test_onnx_describes_its_inputs_and_outputs(task: str, vocab, runs: dict, tmp_path: Path):
    pytest.importorskip("onnx")
    folder = export(ExportOptions(str(runs[task]), str(tmp_path / "1"), format="onnx"))
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx",
        "vocab.txt",
        "export.json",
        "README.md",
    }
    assert (folder / "vocab.txt").read_text().splitlines() == vocab
    info = read_info(folder)
    rows = ["int64", [-1, -1]]
    inputs = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), rows)
    if task == "fill_mask":
        inputs["masked_lm_positions"] = rows
        outputs = {
            "masked_lm_logits": ["float32", [-1, -1, len(vocab)]],
            "next_sentence_logits": ["float32", [-1, 2]],
        }
    else:
        outputs = {"logits": ["float32", [-1, 2]]}
    assert info["signatures"]["serving_default"] == {"inputs": inputs, "outputs": outputs}
    assert info["max_seq_length"] == 96
    assert "doc_stride" not in info
    card = (folder / "README.md").read_text()
    assert "| `serving_default` | input | input_ids | int64 [any, any] |" in card
    assert "curl" not in card


@pytest.mark.parametrize(
    ("task", "how", "message"),
    [
        ("ner", {"task": "classification"}, "is a BertForTokenClassification; expected"),
        ("ner", {"format": "onnx", "max_seq_length": 9}, "--max_seq_length has no effect with"),
        ("classification", {"export_dir": "first"}, "--export_dir=.* is not a version number"),
        ("classification", {"export_dir": "²"}, "is not a version number"),
        ("classification", {"export_dir": str(2**63)}, "number of at most 9223372036854775807"),
    ],
)
def test_invalid_input_is_rejected(task: str, how: dict, message: str, runs: dict, tmp_path: Path):
    how = dict(how)
    where = tmp_path / how.pop("export_dir", "1")
    with pytest.raises(InputError, match=message) as caught:
        export(ExportOptions(str(runs[task]), str(where), **how))
    assert "\n" not in str(caught.value)
    assert not where.exists()


def test_model_without_heads_needs_a_task(runs: dict, edit_json, tmp_path: Path):
    model = tmp_path / "bert"
    shutil.copytree(runs["embedding"] / "model", model)
    edit_json(model / "config.json", architectures=None)
    with pytest.raises(InputError, match=r"unknown model class None; expected --task=class"):
        export(ExportOptions(str(model), str(tmp_path / "1")))
    with pytest.raises(InputError, match="lacks the weights span"):
        export(ExportOptions(str(model), str(tmp_path / "1"), task="question_answering"))


@pytest.mark.slow
def test_any_model_embeds_and_a_model_without_a_run_has_no_scores(make_run, tmp_path):
    sizes = {"type_vocab_size": 1}  # The warm-up requests have one segment then.
    shutil.copytree(make_run(tmp_path / "run", "ner", **sizes) / "model", tmp_path / "bert")
    settings = ExportOptions(str(tmp_path / "bert"), str(tmp_path / "1"), task="embedding")
    card = (export(settings) / "README.md").read_text()
    assert "## Limits" in card
    assert "scores" not in card.lower()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["saved_model", "onnx"])
def test_export_has_the_settings_of_the_tokenizer(
    kind: str, runs: dict, exports: dict, edit_json, tmp_path: Path
):
    settings = {"strip_accents": False, "tokenize_chinese_chars": False}
    assert not settings.keys() & read_info(exports["embedding"]).keys()  # The defaults.
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    shutil.copytree(runs["embedding"], tmp_path / "run")
    edit_json(tmp_path / "run" / "model" / "tokenizer_config.json", **settings)
    folder = export(ExportOptions(str(tmp_path / "run"), str(tmp_path / "1"), format=kind))
    assert settings.items() <= read_info(folder).items()
    card = (folder / "README.md").read_text()
    assert "lower-cased tokens with accents. CJK ideographs are not separate words." in card
    if kind == "saved_model":
        for exported, keeps_accents in ((exports["embedding"], False), (folder, True)):
            serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
            plain, accents = serve(text=tf.constant(["cafe", "café"]))["mean"].numpy()
            assert (abs(plain - accents).max() > 1e-3) == keeps_accents


@pytest.mark.slow
def test_export_has_training_texts_unless_they_are_omitted(runs: dict, tmp_path: Path, caplog):
    texts = [["It rose.", "It fell."]]
    shutil.copytree(runs["classification"], tmp_path / "run")
    (tmp_path / "run" / "examples.json").write_text(json.dumps({"texts": texts}))
    with caplog.at_level("INFO", "absl"):
        info = read_info(export_run(tmp_path / "run"))
    assert info["examples"] == texts
    assert "1 short training texts, which the page of the server shows" in caplog.text
    without = export_run(tmp_path / "run", examples=False)
    assert (without.name, "examples" in read_info(without)) == ("2", False)
    assert export_run(tmp_path / "run", examples=False) == without


def test_texts_of_an_export_are_short_and_from_all_parts_of_the_data():
    texts = [f"text {i}" for i in range(90)]
    texts[0], texts[30], texts[31] = "x" * 201, " ", b"\xe9t\xe9"
    texts[60] = "x" * 200
    assert short_rows([texts]) == [["text 1"], ["\ufffdt\ufffd"], [texts[60]]]
    assert short_rows([["a", "a"], [["b", "c"], ["b", "c"]]]) == [["a", "b c"]]
    assert short_rows([[]]) == []


@pytest.mark.slow
def test_run_is_exported_again_after_retraining(make_run, runs: dict, tmp_path, monkeypatch):
    """SavedModels need none of the packages of other formats."""
    find = importlib.util.find_spec
    absent = ("onnx", "onnxruntime", "openvino")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in absent else find(name, *a)
    )
    shutil.copytree(runs["embedding"], tmp_path / "run")
    versions = tmp_path / "run" / "export"
    (versions / "4").mkdir(parents=True)  # A foreign folder.
    (versions / "²").mkdir()
    assert export_run(tmp_path / "run") == versions / "5"
    before = (versions / "5" / "saved_model.pb").stat().st_mtime_ns
    assert export_run(tmp_path / "run") == versions / "5"
    assert (versions / "5" / "saved_model.pb").stat().st_mtime_ns == before
    make_run(tmp_path / "run", "embedding", initializer_range=0.5)
    assert export_run(tmp_path / "run") == versions / "6"
    checksums = [read_info(versions / version)["weights_sha256"] for version in "56"]
    assert checksums[0] != checksums[1]


def test_run_without_training_is_not_exported(tmp_path: Path):
    with pytest.raises(InputError, match="contains no model/; expected the folder of a run"):
        export_run(tmp_path)


def test_existing_version_is_kept(runs: dict, tmp_path: Path):
    (tmp_path / "7").mkdir()
    (tmp_path / "²").mkdir()
    with pytest.raises(InputError, match=r"7 already exists; expected .*8"):
        export(ExportOptions(str(runs["embedding"]), str(tmp_path / "7")))


def test_model_with_another_tokenizer_is_not_served(runs: dict, edit_json, tmp_path: Path):
    model = tmp_path / "bert"
    shutil.copytree(runs["embedding"] / "model", model)
    edit_json(model / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer")
    message = (
        r'config\.json: tokenizer_class is "BertJapaneseTokenizer"; .*; a vocabulary is required'
    )
    with pytest.raises(InputError, match=message):
        export(ExportOptions(str(model), str(tmp_path / "1")))
    assert not (tmp_path / "1").exists()


def test_left_to_right_model_is_not_served(make_run, tmp_path: Path):
    causal = make_run(tmp_path / "run", "classification", is_decoder=True)
    with pytest.raises(InputError, match=r"run/model: is a left-to-right model .* an export exp"):
        export(ExportOptions(str(causal), str(tmp_path / "1")))
    assert not (tmp_path / "1").exists()


# --- options ---


@pytest.mark.parametrize(
    ("task", "kind", "name", "value", "expected"),
    [
        ("ner", "saved_model", "pair", False, "--compute_type, --max_seq_length"),
        ("fill_mask", "saved_model", "doc_stride", 9, "--compute_type, --max_seq_length, --top_k"),
        ("classification", "onnx", "compute_type", "bfloat16", "--int8"),
        ("embedding", "onnx", "top_k", 5, "--int8"),
    ],
)
def test_unused_settings_are_rejected(task: str, kind: str, name: str, value, expected: str):
    message = f"--{name} has no effect with --task={task} --format={kind}; expected only {expected}"
    with pytest.raises(InputError, match=re.escape(message)):
        check_unused(ExportOptions("model", "1", format=kind, **{name: value}), task)


def test_program_has_only_these_tasks_formats_and_flags(run_program):
    offered = run_program("export_model.py", "--helpfull").stdout.split("absl.logging:")[0]
    words = " ".join(offered.split())
    assert f"(one of {', '.join(CLASSES)})" in words
    assert f"(one of {', '.join(FORMATS)}; default: saved_model)" in words
    names = re.findall(r"^  --(?:\[no\])?(\w+):", offered, re.MULTILINE)
    assert sorted(names) == sorted(field.name for field in fields(ExportOptions))


def test_columns_have_one_name_for_each_role():
    assert NerSettings(columns=["tag=1"]).column_indices == {"token": 0, "tag": 1}
    for columns in (["token=1", "token=2"], ["word=1"], ["token"]):
        with pytest.raises(InputError, match=r"expected ROLE=NAME.*token, tag, each at most once"):
            _ = NerSettings(columns=columns).column_indices


# --- packages ---


@pytest.mark.parametrize(
    ("missing", "how", "message"),
    [
        ("onnx", {"engines": ("openvino",)}, "engines=openvino: the package onnx is not"),
        ("onnx", {"format": "onnx"}, "format='onnx': the package onnx is not"),
        (
            "onnxruntime",
            {"engines": ("onnxruntime", "openvino"), "int8": True},
            "engines=onnxruntime,openvino with int8: the package onnxruntime is not",
        ),
    ],
)
def test_missing_package_names_the_extra(missing, how, message, monkeypatch, tmp_path):
    task = make_task("regression")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a)
    )
    with pytest.raises(InputError, match=f"^{message}") as caught:
        task.export(tmp_path / "model" / "1", **how)
    assert str(caught.value).endswith("pip install 'keras-bert-pipeline[onnx]'")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
