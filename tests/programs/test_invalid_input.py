"""Input that only a program's main function can check: one line, exit code 1 and no output.

The declarations of options are checked in test_program.py, files in the tests of their readers.
"""

import re

import pytest

from tests.programs.conftest import FLAGS

RECIPE = {"recipe": "recipe.toml", "input_file": "records/{max_seq_length}.tfrecord"}
FEATURES = {"input_file": "texts.tsv", "output_file": "features.npz"}
FEATURES |= {"init_checkpoint": "bert", "max_seq_length": 16}
SST_2 = {"task_name": "SST-2", "train_file": "", "eval_file": ""}
NOTHING = dict.fromkeys(("do_train", "do_eval", "do_predict"), False)
# {program: (its flags besides FLAGS, a regular expression for the message)}
CASES = {
    "run_classifier.py": [
        (SST_2 | {"task_name": "SNLI"}, "--task_name=SNLI: expected CoLA"),
        (
            SST_2 | {"task_name": ""},
            "--train_file is required, .* the shortest command is: keras-bert classify "
            "--train_file=",
        ),
        (SST_2, "--data_dir is missing; expected the folder of SST-2"),
        ({"init_checkpoint": "nowhere"}, "nowhere: no such checkpoint"),
        ({"teacher": "bert"}, "--teacher=bert has untrained weights: no head; ex"),
        ({"output_dir": "bert/."}, "--output_dir=bert/.: overlaps with --init_c"),
    ],
    "run_ner.py": [
        ({"data_dir": "nre"}, "--data_dir=nre: contains none of .* train.conll, "),
        ({"task_name": "wikiann/de"}, "=wikiann/de can only be used with --tfds"),
        ({"train_file": "texts.tsv"}, "texts.tsv, line 1: tag 'label'; expected O, or"),
        ({"columns": "word=1"}, "--columns=word=1: expected ROLE=NAME, .* token, tag"),
        ({"columns": "tag=last"}, "--columns=tag=last: expected whole numbers"),
        (NOTHING, "expected --do_train, --do_eval or"),
    ],
    "run_squad.py": [
        ({"train_file": "misplaced.json"}, "no training question has its answer in it"),
        ({"train_file": "", "data_dir": "no"}, "=no: contains none .* train-v1.1.json"),
        ({"doc_stride": 13}, "doc_stride=13: is larger than the part of the context"),
        ({"output_dir": "."}, "--output_dir=.: is the folder of the input squad.json"),
    ],
    "run_embedding.py": [
        ({"train_batch_size": 1}, "batch size 1: the loss mnrl"),
        ({"matryoshka_sizes": "17"}, "=17: expected different whole numbers from 1"),
        ({"columns": "negative=no"}, "has no column 'no'; its header"),
        ({"score_range": "1"}, r"--score_range=\['1'\]: expected"),
        (
            {"train_file": "sts.jsonl", "loss": "cosent"},
            "sts.jsonl, line 1: the score is 5; expected from -1 to 1",
        ),
    ],
    "run_pretraining.py": [
        ({"do_train": False}, "--do_train=false needs an --init_checkpoint"),
        ({"input_file": "no/*"}, r"no record files match 'no/\*'"),
        ({"output_dir": "config.json/out"}, "config.json/out.*cannot be written"),
        ({"max_seq_length": 128}, "max_seq_length is 16; expected 128, as in --"),
        ({"bert_config": "gigantic"}, "gigantic"),
        (
            {"train_batch_size": 9, "gradient_accumulation_steps": 2},
            "=9 is not divisible by 1 devices x 2 micro-batches",
        ),
        ({"export": True, "objective": "ltr"}, "--export: left-to-right models c"),
        (RECIPE | {"recipe": "no.toml"}, r"no\.toml: cannot be read"),
        (RECIPE | {"input_file": "one"}, "--input_file=one: .*recipe.toml.*16, 32"),
        (RECIPE | {"output_dir": "records"}, "is the folder of the input records/"),
        (
            RECIPE | {"init_checkpoint": "bert", "output_dir": "bert/."},
            "--output_dir=bert/.: overlaps with --init_checkpoint",
        ),
    ],
    "extract_features.py": [
        ({"layers": "last"}, "=last: expected integers, separated by commas"),
        ({"input_file": "no.txt"}, "no.txt: cannot be read"),
    ],
    "adapt.py": [
        ({"init_checkpoint": "no"}, "no: no such checkpoint; expected a model directory"),
        ({"max_seq_length": 64}, "--max_seq_length=64: the model has only 32 positions"),
        ({"gradient_accumulation_steps": 3}, "--train_batch_size=32 is not divisible by"),
        ({"train_batch_size": 2**20, "max_seq_length": 32}, "--train_batch_size=1048576: "),
        ({"input_format": "html", "text_field": "a"}, "--text_field=a with --input_format="),
    ],
}


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [(program, *case) for program, cases in CASES.items() for case in cases],
)
def test_invalid_input_is_one_line_and_writes_nothing(
    run_program, place, tmp_path, monkeypatch, program, flags, message
):
    monkeypatch.setattr("keras_bert.models.memory.available_memory", lambda: 2**30)
    output = {} if program == "extract_features.py" else {"output_dir": tmp_path / "out"}
    before = sorted(place.rglob("*"))
    done = run_program(program, cwd=place, **FLAGS.get(program, FEATURES) | output | flags)
    assert (done.returncode, done.stdout) == (1, "")
    *_, line = done.stderr.splitlines()
    assert line.startswith(f"{program}: error: ")
    assert re.search(message, line), line
    assert "Traceback" not in done.stderr
    assert sorted(place.rglob("*")) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "flag"),
    [
        ("run_embedding.py", "train_file"),
        ("run_ner.py", "train_file"),
        ("run_squad.py", "train_file"),
        ("run_pretraining.py", "bert_config"),
    ],
)
def test_missing_file_is_found_before_tensorflow_starts(
    run_program, place, tmp_path, monkeypatch, program, flag
):
    def start():
        raise AssertionError("TensorFlow starts")

    for module in ("fine_tuning", "pretrain"):
        monkeypatch.setattr(f"keras_bert.programs.{module}.start_tensorflow", start)
    flags = FLAGS[program] | {flag: "", "output_dir": tmp_path / "out"}
    done = run_program(program, cwd=place, **flags)
    assert f"--{flag} is required, " in done.stderr
