"""run_squad.py as a user runs it: a tiny model learns questions by heart; bad input."""

import json
import os
import subprocess
import sys

import pytest

CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
WORDS = "rollo charles denmark france king swore fealty to of the who ?".split()  # noqa: SIM905


def entry(name, answer, context, start=None):
    answers = [{"text": answer, "answer_start": context.index(answer) if start is None else start}]
    return {"id": name, "question": "Who swore?", "answers": answers}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of random weights, and questions about eight contexts."""
    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.encoder import BertEncoder

    folder = tmp_path_factory.mktemp("squad")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig.from_dict(CONFIG | {"vocab_size": len(vocab)})
    save_model_directory(folder / "start", BertEncoder(config), config, vocab)
    paragraphs = []
    for i, name in enumerate(["Rollo", "Charles", "Denmark", "France"]):
        for j, context in enumerate([f"the king {name} swore", f"{name} of the king swore fealty"]):
            paragraphs.append({"context": context, "qas": [entry(f"{i}{j}", name, context)]})
    write(folder / "train.json", paragraphs)
    return folder


def write(path, paragraphs):
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return path


def run(root, folder, cwd=None, **flags):
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    environment = os.environ | {"PYTHONPATH": str(root), "TFDS_DATA_DIR": str(folder / "none")}
    return subprocess.run(
        [sys.executable, str(root / "run_squad.py"), *arguments],
        cwd=cwd or root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def flags_of(folder, **changes):
    return {
        "init_checkpoint": folder / "start",
        "train_file": folder / "train.json",
        "eval_file": folder / "train.json",
        "output_dir": folder / "out",
        "max_seq_length": 24,
        "max_query_length": 8,
        "train_batch_size": 8,
        "learning_rate": 3e-3,
        "num_train_steps": 60,
        "warmup_proportion": 0.0,
        "mixed_precision": "float32",
        "jit_compile": False,
    } | changes


@pytest.fixture(scope="module")
def finished(root, folder):
    done = run(root, folder, **flags_of(folder))
    assert done.returncode == 0, done.stderr
    return folder / "out", done


def test_a_tiny_model_learns_eight_questions_by_heart(finished):
    results = json.loads((finished[0] / "results.json").read_text())
    assert results["exact"] == results["f1"] == 100.0
    assert "exact = 100" in finished[1].stdout


def test_a_run_leaves_the_files_of_the_contract(finished):
    output_dir, _ = finished
    expected = {"model", "best", "checkpoints", "tensorboard", "metrics.jsonl", "results.json"}
    predictions = {"predictions.json", "nbest_predictions.json"}
    assert {path.name for path in output_dir.iterdir()} == expected | predictions | {"run.json"}
    answers = json.loads((output_dir / "predictions.json").read_text())
    assert answers["00"] == "Rollo"
    config = json.loads((output_dir / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]


def test_the_saved_model_predicts_questions_without_answers(root, folder, finished):
    context = "the king Denmark swore"
    asked = [{"context": context, "qas": [{"id": "x", "question": "Who swore?"}]}]
    done = run(
        root,
        folder,
        **flags_of(
            folder,
            init_checkpoint=finished[0],
            predict_file=write(folder / "ask.json", asked),
            output_dir=folder / "predicted",
            do_train=False,
            do_eval=False,
        ),
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads((folder / "predicted" / "predictions.json").read_text())
    assert answers == {"x": "Denmark"}


def test_without_flags_it_says_what_to_put_where(root, folder, tmp_path):
    done = run(root, folder, cwd=tmp_path)
    assert done.returncode == 1
    assert "found no SQuAD v1.1" in done.stderr
    assert "data/squad/train-v1.1.json" in done.stderr
    assert "python run_squad.py --train_file=F" in done.stderr
    assert len(done.stderr.splitlines()) < 10


def test_without_flags_it_takes_what_lies_under_data(root, folder, tmp_path):
    (tmp_path / "data" / "squad").mkdir(parents=True)
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / "data" / "squad" / name).symlink_to(folder / "train.json")
    done = run(root, folder, cwd=tmp_path)
    assert "found no checkpoint" in done.stderr
    (tmp_path / "data" / "bert").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "data" / "bert" / name).write_text("{}")
    done = run(root, folder, cwd=tmp_path)
    assert done.returncode == 1
    assert "run_squad.py: error: data/bert" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"train_file": ""}, "--do_train needs --train_file or --tfds"),
        ({"strict": True, "train_file": "misplaced"}, "1 of 1 training answers are not in"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(root, folder, flags, message):
    paragraph = {"context": "Rollo swore", "qas": [entry("a", "Charles", "", start=2)]}
    flags = dict(flags)
    if flags.get("train_file"):
        flags["train_file"] = write(folder / "misplaced.json", [paragraph])
    done = run(root, folder, **flags_of(folder, output_dir=folder / "bad", **flags))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("run_squad.py: error: ")
    assert message in last
    assert "Traceback" not in done.stderr
    assert not (folder / "bad").exists()
