"""Several programs run one after another in one process without affecting each other."""

import json

import pytest

from keras_bert.programs import classify, fill_mask, squad
from keras_bert.programs.program import call

WORDS = ["good", "bad", "film", "very", "who", "swore", "the", "king", "rollo", "."]


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_checkpoint):
    """Creates a folder with a classification task, questions and an encoder."""
    place = tmp_path_factory.mktemp("place")
    make_checkpoint(place / "bert", WORDS)
    texts = [f"{'very ' * (i % 4)}{('bad', 'good')[i % 2]} film .\t{i % 2}\n" for i in range(8)]
    (place / "SST-2").mkdir()
    for name in ("train", "dev"):
        (place / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(texts))
    answer = {"text": "Rollo", "answer_start": 9}
    entry = {"id": "a", "question": "Who swore?", "answers": [answer]}
    paragraph = {"context": "the king Rollo swore.", "qas": [entry]}
    (place / "train.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return place


def train(program, place, name, **flags):
    """Runs a program for one epoch; returns its exit code."""
    common = {"init_checkpoint": place / "bert", "output_dir": place / name, "max_seq_length": 24}
    common |= {"num_train_epochs": 1, "train_batch_size": 4}
    given = [f"--{flag}={value}" for flag, value in (common | flags).items()]
    return call(program, [f"{name}.py", "--nojit_compile", *given])


def test_programs_run_one_after_another(place, capfd):
    glue = {"task_name": "SST-2", "data_dir": place}
    assert train(classify.PROGRAM, place, "first", **glue) == 0
    out, err = capfd.readouterr()
    assert "accuracy = " in out
    assert "step 2/2" in err
    # Flags of an earlier call are not kept: without them the task is unknown.
    assert train(classify.PROGRAM, place, "second", data_dir=place) == 1
    assert "second.py: error: --task_name is missing" in capfd.readouterr().err
    assert train(classify.PROGRAM, place, "second", **glue, learning_rate=1e-3) == 0
    assert train(classify.PROGRAM, place, "first", **glue) == 0
    assert "first is finished; nothing to do" in capfd.readouterr().err
    rates = [json.loads((place / name / "run.json").read_text()) for name in ("first", "second")]
    assert [run["settings"]["learning_rate"] for run in rates] == [5e-5, 1e-3]

    files = {"train_file": place / "train.json", "eval_file": place / "train.json"}
    files["max_query_length"] = 8
    assert train(squad.PROGRAM, place, "squad", **files) == 0
    assert "f1 = " in capfd.readouterr().out
    settings = json.loads((place / "squad" / "run.json").read_text())["settings"]
    assert settings["doc_stride"] == 128
    assert "task_name" not in settings

    flags = [f"--model_dir={place / 'bert'}", "--top_k=2", "very [MASK] film"]
    assert call(fill_mask.PROGRAM, ["run_fill_mask.py", *flags]) == 1
    assert "has no masked-LM head" in capfd.readouterr().err
