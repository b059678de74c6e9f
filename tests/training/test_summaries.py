"""metrics.jsonl has one line per logged step; resuming a run removes lines of later steps."""

import json
import resource

import pytest

from keras_bert.common.errors import InputError
from keras_bert.training.summaries import Summaries


@pytest.fixture
def write(tmp_path):
    """Returns a function that resumes a run's summaries at a step and writes some lines."""

    def session(first_step, *lines):
        summaries = Summaries(tmp_path, first_step, num_train_steps=40)
        for step, metrics, prefix in lines:
            summaries.write(step, metrics, prefix)
        summaries.close()

    return session


@pytest.fixture
def metrics(tmp_path):
    return tmp_path / "metrics.jsonl"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_step_is_one_line_and_evaluation_metrics_have_a_prefix(write, metrics, tmp_path):
    write(0, (10, {"loss": 2.5, "accuracy": 0.25}, ""), (10, {"loss": 3.0}, "eval_"))
    assert lines_of(metrics) == [
        {"step": 10, "loss": 2.5, "accuracy": 0.25},
        {"step": 10, "eval_loss": 3.0},
    ]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_lines_after_the_first_step_are_dropped_when_resuming(write, metrics):
    write(0, *((step, {"loss": 40.0 - step}, "") for step in (10, 20, 30)))
    write(20, (30, {"loss": 1.0}, ""))
    assert [(line["step"], line["loss"]) for line in lines_of(metrics)] == [
        (10, 30.0),
        (20, 20.0),
        (30, 1.0),
    ]


@pytest.mark.parametrize("incomplete", ['{"step": 20, "lo', '{"st', "{}"])
def test_incomplete_last_line_is_dropped_when_resuming(write, metrics, incomplete):
    write(0, (10, {"loss": 1.0}, ""))
    with open(metrics, "a") as file:
        file.write(incomplete)
    write(20, (30, {"loss": 2.0}, ""))
    assert lines_of(metrics) == [
        {"step": 10, "loss": 1.0},
        {"step": 30, "resumed_at_step": 20, "loss": 2.0},
    ]


def test_only_the_first_line_after_a_resume_names_the_step_where_its_metrics_start(write, metrics):
    write(0, (10, {"loss": 2.0}, ""), (10, {"loss": 3.0}, "eval_"))
    write(15, (15, {"loss": 3.0}, "eval_"), (20, {"loss": 1.0}, ""), (30, {"loss": 0.5}, ""))
    assert lines_of(metrics)[2:] == [
        {"step": 15, "eval_loss": 3.0},
        {"step": 20, "resumed_at_step": 15, "loss": 1.0},
        {"step": 30, "loss": 0.5},
    ]


def test_run_from_step_0_removes_old_lines(write, metrics):
    write(0, (10, {"loss": 1.0}, ""))
    write(0)
    assert metrics.read_text() == ""


def test_full_disk_raises_an_error_that_names_the_file(tmp_path, metrics):
    summaries = Summaries(tmp_path, 0, num_train_steps=40)
    metrics.symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"metrics\.jsonl: cannot be written \(No space left"):
        summaries.write(10, {"loss": 1.0})
    summaries.close()


def test_full_disk_for_tensorboard_raises_an_error_that_names_it(tmp_path):
    """Limits the file size to the current one: TensorFlow's error is that of a full disk."""
    summaries = Summaries(tmp_path, 0, num_train_steps=40)
    (events,) = (tmp_path / "tensorboard").iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (events.stat().st_size, before[1]))
    try:
        with pytest.raises(InputError, match=r"tensorboard: cannot be written \(File too large\)$"):
            summaries.write(10, {"loss": 1.0})
        summaries.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
