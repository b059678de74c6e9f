"""Runs run_ner.py as a user does: a folder of files, flags of the run, and invalid input."""

import json

import pytest

from keras_bert.tasks.ner.data import read_conll

TRAIN = "Ada\tB-PER\nmet\tO\nBob\tB-PER\nLee\tI-PER\n\t\nin\tO\nUlm\tB-LOC\n\t\n" * 8


@pytest.fixture(scope="module")
def place(make_checkpoint, tmp_path_factory):
    """Creates a working folder with data/ner and data/bert."""
    place = tmp_path_factory.mktemp("place")
    (place / "data" / "ner").mkdir(parents=True)
    (place / "data" / "ner" / "train.conll").write_text(TRAIN)
    (place / "data" / "ner" / "dev.conll").write_text(TRAIN[:70])
    words = ["ada", "met", "bob", "lee", "in", "ulm"]
    make_checkpoint(place / "data" / "bert", words, max_position_embeddings=128)
    return place


@pytest.mark.slow
def test_files_of_a_data_folder_are_used(run_program, place):
    flags = {"init_checkpoint": "data/bert", "output_dir": "out/ner"}
    done = run_program("run_ner.py", "--nojit_compile", cwd=place, data_dir="data/ner", **flags)
    assert done.returncode == 0, done.stderr
    output_dir = place / "out" / "ner"
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
    assert words == [s.words for s in read_conll(place / "data" / "ner" / "dev.conll")]
    # Naming the same files continues the same run.
    flags |= {"train_file": "data/ner/train.conll", "eval_file": "data/ner/dev.conll"}
    again = run_program("run_ner.py", "--nojit_compile", cwd=place, **flags)
    assert again.returncode == 0, again.stderr
    assert "is finished; nothing to do" in again.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"data_dir": "data/nre"},
            "--data_dir=data/nre: contains none of the expected files train.conll, ",
        ),
        ({"task_name": "wikiann/de"}, "--task_name=wikiann/de can only be used with --tfds"),
        ({"init_checkpoint": ""}, "--init_checkpoint is required"),
    ],
)
def test_data_flags_without_matching_data_are_rejected(run_program, place, flags, message):
    flags = {"init_checkpoint": "data/bert", "output_dir": "bad"} | flags
    done = run_program("run_ner.py", cwd=place, **flags)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "bad").exists()


def test_prediction_takes_columns_and_context_from_the_run(run_program, tmp_path):
    settings = {"columns": ["token=1", "tag=3"], "document_context": True, "tag_scheme": "iob1"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    flags = {"init_checkpoint": ".", "output_dir": "model"}  # The folder is rejected later.
    done = run_program("run_ner.py", "--nodo_train", cwd=tmp_path, **flags)
    taken = "--document_context=True --columns=token=1,tag=3"
    assert f"Using the settings of .: {taken}\n" in done.stderr
    assert "--output_dir=model: overlaps with --init_checkpoint" in done.stderr


def test_malformed_line_fails_with_one_line_and_leaves_no_folder(run_program, place, tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("Ada\tB-PER\nmet\n")
    flags = {"init_checkpoint": "data/bert", "output_dir": tmp_path / "out"}
    done = run_program("run_ner.py", cwd=place, train_file=path, **flags)
    assert done.returncode == 1
    assert (
        f"{path}, line 2: expected 2 columns, as in line 1; got 1: 'met'"
        in (done.stderr.splitlines()[-1])
    )
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
