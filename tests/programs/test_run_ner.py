"""Runs run_ner.py as a user does: a folder of files, and flags of the run."""

import json

import pytest

from keras_bert.tasks.ner.data import read_conll

TRAIN = "Ada\tB-PER\nmet\tO\nBob\tB-PER\nLee\tI-PER\n\t\nin\tO\nUlm\tB-LOC\n\t\n" * 8


@pytest.mark.slow
def test_files_of_a_data_folder_are_used(run_program, make_checkpoint, tmp_path):
    (tmp_path / "ner").mkdir()
    (tmp_path / "ner" / "train.conll").write_text(TRAIN)
    (tmp_path / "ner" / "dev.conll").write_text(TRAIN[:70])
    words = ["ada", "met", "bob", "lee", "in", "ulm"]
    make_checkpoint(tmp_path / "bert", words, max_position_embeddings=128)
    flags = {"init_checkpoint": "bert", "output_dir": "out"}
    done = run_program("run_ner.py", "--nojit_compile", cwd=tmp_path, data_dir="ner", **flags)
    assert done.returncode == 0, done.stderr
    output_dir = tmp_path / "out"
    assert {path.name for path in output_dir.iterdir()} >= {
        "model",
        "checkpoints",
        "tensorboard",
        "metrics.jsonl",
        "results.json",
        "run.json",
        "predictions.conll",
    }
    results = json.loads((output_dir / "results.json").read_text())
    assert {"precision", "recall", "f1", "f1_PER", "f1_LOC"} <= results.keys()
    assert f"f1 = {results['f1']:.6g}" in done.stdout
    words = [s.words for s in read_conll(output_dir / "predictions.conll")]
    assert words == [s.words for s in read_conll(tmp_path / "ner" / "dev.conll")]
    # Naming the same files continues the same run.
    flags |= {"train_file": "ner/train.conll", "eval_file": "ner/dev.conll"}
    again = run_program("run_ner.py", "--nojit_compile", cwd=tmp_path, **flags)
    assert again.returncode == 0, again.stderr
    assert "is finished; nothing to do" in again.stderr


def test_prediction_takes_columns_and_context_from_the_run(run_program, tmp_path):
    settings = {"columns": ["token=1", "tag=3"], "document_context": True, "tag_scheme": "iob1"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    flags = {"init_checkpoint": ".", "output_dir": "model"}  # The folder is rejected later.
    done = run_program("run_ner.py", "--nodo_train", cwd=tmp_path, **flags)
    taken = "--document_context=True --columns=token=1,tag=3"
    assert f"Using the settings of .: {taken}\n" in done.stderr
    assert "--output_dir=model: overlaps with --init_checkpoint" in done.stderr
