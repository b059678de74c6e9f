"""fill-mask, embed and classify answer each line of standard input with a line of JSON."""

import json
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller
from tests import processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(place, tmp_path_factory):
    """Returns {name: the flags of a program with its model, which truncates to 8 tokens}."""
    folder, flags = tmp_path_factory.mktemp("models"), ["--mixed_precision=float32"]
    for name, pair in {"classify": False, "pairs": True, "unknown": None}.items():
        classifier = TextClassifier.from_checkpoint(
            open_checkpoint(place / "bert"),
            labels=["bad", "good"],
            max_seq_length=8,
            pair=pair,
        )
        classifier.save_pretrained(folder / name)
    start = ["--nodo_train", *flags]
    return {
        "fill-mask": ["fill-mask", f"--model_dir={place / 'pretrained'}", "--max_seq_length=8"],
        "embed": ["embed", *start, f"--init_checkpoint={place / 'bert'}", "--max_seq_length=8"],
        "classify": ["classify", *start, f"--init_checkpoint={folder / 'classify'}"],
        "pairs": ["classify", *start, f"--init_checkpoint={folder / 'pairs'}"],
        "unknown": ["classify", *start, f"--init_checkpoint={folder / 'unknown'}"],
    }


def answers(flags, lines, folder):
    """Returns the exit code, the answers and the standard error of a program for some lines."""
    text = "".join(f"{line}\n" for line in lines)
    done = processes.run(["-m", "keras_bert", *flags], cwd=folder, input=text)
    return done.returncode, [*map(json.loads, done.stdout.splitlines())], done.stderr


LONG = "very " * 9
LINES = {
    "fill-mask": ["it is [MASK] .", "", f"[MASK] {LONG}", f"{LONG}[MASK]"],
    "embed": ["good film", "", LONG],
    "classify": ["good film", "", LONG],
    "pairs": ["good film\tbad", "", f"good\t{LONG}"],
    "unknown": ["good film\tbad", "", f"good\t{LONG}"],  # The first line decides.
}


@pytest.mark.parametrize("name", LINES)
def test_each_line_has_an_answer_equal_to_that_of_the_api(models, tmp_path, name):
    flags, lines = models[name], LINES[name]
    path = next(flag.split("=")[1] for flag in flags if flag.startswith(("--model", "--init")))
    code, rows, error = answers(flags, lines, tmp_path)
    assert code == 0, error
    if name == "fill-mask":
        expected = MaskFiller.from_pretrained(path, max_seq_length=8).predict(lines)
        assert [row["tokens"] for row in rows] == [each.tolist() for each in expected["tokens"]]
        assert [len(row["scores"]) for row in rows] == [1, 0, 1, 0]
    elif name == "embed":
        expected = TextEmbedder.from_pretrained(path, max_seq_length=8).predict(lines)
        vectors = [row["embedding"] for row in rows]
        np.testing.assert_allclose(vectors, expected["mean"], atol=2e-6)
    else:
        pairs = [line.split("\t") if line else ["", ""] for line in lines]
        texts = tuple(map(list, zip(*pairs, strict=True))) if name != "classify" else lines
        expected = TextClassifier.from_pretrained(path).predict(texts)
        assert [row["prediction"] for row in rows] == [*expected["label"]]
        shares = [[row["probabilities"][label] for label in ("bad", "good")] for row in rows]
        np.testing.assert_allclose(shares, expected["probabilities"], atol=2e-6)
    assert [row["truncated"] for row in rows] == [*expected["truncated"]]
    assert any(row["truncated"] for row in rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("pairs", "good film", "'good film' has 1 texts, separated by tabs; the model expects 2"),
        ("classify", "good\t1", r"'good\t1' has 2 texts, separated by tabs; the model expects 1"),
    ],
)
def test_line_with_another_number_of_texts_is_rejected(models, tmp_path, name, line, message):
    code, rows, error = answers(models[name], ["", "", line, ""], tmp_path)
    assert (code, len(rows)) == (1, 2)
    assert error.splitlines()[-1].endswith(f"error: standard input: {message}")


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("classify", {"init_checkpoint": "bert"}, "bert: has no head; expected a model that was"),
        ("classify", {"task_name": "SST-2"}, "--task_name: has no effect on lines of standard"),
        ("pairs", {"long_text": "windows"}, "long_text='windows': got pairs of texts"),
        ("embed", {"vocab_file": "no.txt"}, "no.txt"),
    ],
)
def test_invalid_flags_are_one_line(models, run_program, place, name, flags, message):
    program, *start = models[name]
    names = {"classify": "run_classifier.py", "embed": "run_embedding.py"}
    done = run_program(names[program], *start, cwd=place, **flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr.splitlines()[-1]


def test_flags_of_the_checkpoint_and_of_long_texts_apply(models, place, tmp_path):
    words = (place / "bert" / "vocab.txt").read_text().split("\n")
    swapped = {"good": "bad", "bad": "good"}
    (tmp_path / "vocab.txt").write_text("\n".join(swapped.get(word, word) for word in words))
    flags, lines = models["classify"], ["good film", f"bad {LONG}bad"]
    _, before, _ = answers(flags, lines, tmp_path)
    more = ["--label_names=no,yes", "--vocab_file=vocab.txt", "--nodo_lower_case"]
    more += ["--long_text=windows"]
    code, rows, error = answers([*flags, *more], ["bad film", "BAD film", lines[1]], tmp_path)
    assert code == 0, error
    bad, good = (before[0]["probabilities"][label] for label in ("bad", "good"))
    assert [*rows[0]["probabilities"].items()] == [("no", bad), ("yes", good)]
    assert rows[1]["probabilities"] != rows[0]["probabilities"]
    assert [row["truncated"] for row in rows] == [False] * 3
    assert before[1]["truncated"]


def test_answers_come_at_once_and_a_reader_that_ends_is_no_error(models, root):
    """A process of its own: the stdout of a forked one cannot be a pipe."""
    command = [sys.executable, "-m", "keras_bert", *models["embed"]]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=root, text=True, bufsize=1, **pipes) as process:
        for text in ("good", "bad"):
            process.stdin.write(f"{text}\n")
            line = process.stdout.readline()
            assert line, process.stderr.read()
            assert json.loads(line).keys() == {"embedding", "truncated"}
        process.stdout.close()  # As head does.
        process.stdin.write("good\n")
        error = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in error
    assert "BrokenPipe" not in error
