"""The programs with KERAS_BACKEND=jax: same flags, files and metrics; bit-identical resuming."""

import functools
import json
import shutil

import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.training.run_folder import is_finished

LABELS = ("no", "yes")


@pytest.fixture(scope="module")
def on_jax(run_program, backend_python):
    """Returns a function like `run_program` for programs that compute with JAX."""
    backend_python("jax")
    return functools.partial(run_program, environment={"KERAS_BACKEND": "jax"})


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory, write_records, on_jax):
    """Returns a function: folder -> the finished process of 6 pre-training steps on two devices."""
    folder = tmp_path_factory.mktemp("pretraining")
    write_records(folder / "a.tfrecord", 40)
    config = BertConfig(50, 16, 1, 2, 32, max_position_embeddings=32)
    config.to_json(folder / "config.json")

    def run(output_dir):
        return on_jax(
            "run_pretraining.py",
            input_file=folder / "a.tfrecord",
            eval_file=folder / "a.tfrecord",
            bert_config=folder / "config.json",
            output_dir=output_dir,
            train_batch_size=8,
            eval_batch_size=8,
            num_train_steps=6,
            num_warmup_steps=2,
            save_checkpoints_steps=2,
            log_steps=2,
            distribution_strategy="mirrored",
            num_devices=2,
        )

    return run


@pytest.fixture(scope="module")
def pretrained(pretraining, tmp_path_factory):
    """Returns the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = pretraining(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_run_writes_the_usual_files(pretrained):
    names = {path.name for path in pretrained.iterdir()}
    expected = {"checkpoints", "metrics.jsonl", "model", "results.json", "run.json", "tensorboard"}
    assert names == expected
    results = json.loads((pretrained / "results.json").read_text())
    assert results["step"] == 6
    assert results["masked_lm_loss"] == pytest.approx(4.0, abs=1.0)  # about log(50)
    lines = [json.loads(line) for line in (pretrained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6]
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 4, 6]


def test_run_killed_at_step_4_resumes_bit_identical(pretrained, pretraining, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(pretrained, again)
    for path in (again / "model", again / "checkpoints" / "step-00000006"):
        shutil.rmtree(path)
    (again / "results.json").unlink()
    done = pretraining(again)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Training resumed at step 4" in done.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        place = f"checkpoints/step-00000006/{name}"
        assert (again / place).read_bytes() == (pretrained / place).read_bytes()


def test_run_does_not_resume_on_another_backend(pretrained):
    settings = json.loads((pretrained / "run.json").read_text())["settings"]
    with pytest.raises(InputError, match='backend was "jax" and is now "tensorflow"'):
        is_finished(pretrained, settings | {"backend": "tensorflow"}, tf.distribute.get_strategy())


def test_classifier_is_fine_tuned_evaluated_and_predicts(on_jax, make_checkpoint, tmp_path):
    words = [f"word{i}" for i in range(8)]
    make_checkpoint(tmp_path / "bert", words)
    for split, count in (("train", 32), ("dev", 9)):
        rows = [f"word{i % 8} word{i % 3}\t{LABELS[i % 2]}" for i in range(count)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    done = on_jax(
        "run_classifier.py",
        task_name="custom",
        train_file=tmp_path / "train.tsv",
        eval_file=tmp_path / "dev.tsv",
        init_checkpoint=tmp_path / "bert",
        output_dir=tmp_path / "out",
        max_seq_length=8,
        train_batch_size=8,
        eval_batch_size=4,
        learning_rate=0.003,
        num_train_epochs=20,
        gradient_accumulation_steps=2,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["accuracy"] == 1.0  # The label is whether the first word's number is odd.
    assert len((tmp_path / "out" / "predictions.tsv").read_text().splitlines()) == 10
    weights = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert weights["classifier.weight"].shape == (2, 16)


def test_export_is_rejected_before_anything_runs(on_jax, tmp_path):
    done = on_jax("run_pretraining.py", input_file="a", output_dir=tmp_path, export="true")
    assert done.returncode == 1
    assert "--export" in done.stderr
    assert (
        "requires the TensorFlow backend; to export a JAX run, run keras-bert export" in done.stderr
    )
