"""Logging: metrics.jsonl, signs of progress at fixed intervals, progress bars, TensorBoard."""

import io
import json
import resource
import sys
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_bert.errors import InputError
from keras_bert.training import log
from keras_bert.training.log import Board, Summaries, progress

# --- metrics ---


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


# --- heartbeat ---


@pytest.fixture
def quick(monkeypatch):
    """Reports after 0.2 seconds instead of ten."""
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.2)
    monkeypatch.setattr(log, "_SECONDS_TO_CHECK", 0.02)


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_it_reports_only_during_calls(quick):
    reports = []
    beat = log.Heartbeat(reports.append)
    time.sleep(0.5)
    assert not reports
    with beat.during_call():
        wait_until(lambda: len(reports) >= 2)
    beat.close()
    count = len(reports)
    time.sleep(0.5)
    assert len(reports) == count
    assert reports == sorted(reports)


def test_other_lines_postpone_the_report(quick):
    reports = []
    beat = log.Heartbeat(reports.append)
    with beat.during_call():
        for _ in range(20):
            beat.restart_clock()
            time.sleep(0.02)
    beat.close()
    assert not reports


def test_the_first_steps_report_the_compilation_and_later_ones_the_step(quick, tmp_path, caplog):
    summaries = Summaries(tmp_path, 0, num_train_steps=40)
    with caplog.at_level("INFO", "absl"):
        with summaries.during_steps():
            assert caplog.messages == ["Compiling the training step"]
            wait_until(lambda: len(caplog.messages) >= 2)
        assert caplog.messages[1].startswith("Compiling the training step: ")
        summaries.advance(3)
        caplog.clear()
        with summaries.during_steps():
            wait_until(lambda: len(caplog.messages) >= 2)
        summaries.close()
    assert caplog.messages[0].startswith("step 3/40")
    assert caplog.messages[-1].startswith("step 3/40; the next steps take ")


def test_short_steps_are_reported_without_their_time(tmp_path, caplog):
    summaries = Summaries(tmp_path, 0, num_train_steps=40)
    with summaries.during_steps():
        pass
    summaries.advance(3)
    with caplog.at_level("INFO", "absl"):
        summaries._report_running(1.0)
    summaries.close()
    assert caplog.messages == ["step 3/40"]


def test_the_rate_of_the_bar_excludes_the_compilation(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    summaries = Summaries(tmp_path, 0, num_train_steps=40)
    with summaries.during_steps():
        time.sleep(1)
    summaries.advance(1)
    assert summaries._bar.format_dict["elapsed"] < 0.5
    summaries.close()


# --- other long work ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Reports progress immediately, as for long work."""
    monkeypatch.setattr(log, "_SECONDS_TO_BAR", 0.0)
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.0)


def work(silent=False):
    with progress("predicting", 5, "examples", silent) as advance:
        advance(2)
        advance(4)  # The last batch of several workers may be partly padding.


def test_long_work_logs_lines_with_a_rate_without_a_terminal(at_once, caplog):
    with caplog.at_level("INFO", "absl"):
        work()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("predicting: 2/5 examples, ")
    assert first.endswith(" examples/s")
    assert last.startswith("predicting: 5/5 examples, ")


def test_long_work_shows_a_bar_with_a_rate_on_a_terminal(at_once, caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with caplog.at_level("INFO", "absl"):
        work()
    shown = sys.stderr.getvalue()
    assert "predicting" in shown
    assert "/5 [" in shown
    assert "examples/s" in shown
    assert not caplog.records


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_work_shows_no_progress(stream, caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with caplog.at_level("INFO", "absl"):
        work()
    assert sys.stderr.getvalue() == ""
    assert not caplog.records


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_only_one_of_several_workers_shows_progress(stream, at_once, caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with caplog.at_level("INFO", "absl"):
        work(silent=True)
    assert sys.stderr.getvalue() == ""
    assert not caplog.records


# --- tables and curves ---


def test_table_and_curve_can_be_read_back(tmp_path):
    board = Board(tmp_path, 7)
    board.table("wrong", ["text", "label"], [["a|b\nc", 1], ["d", 2], ["half \ud83d", 3]])
    board.pr_curve("positive", np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.6, 0.1]))
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    [text] = events.Tensors("wrong")
    assert text.step == 7
    assert text.tensor_proto.string_val[0].decode().splitlines() == [
        "| text | label |",
        "| --- | --- |",
        "| a\\|b c | 1 |",
        "| d | 2 |",
        "| half ? | 3 |",
    ]
    [curve] = events.Tensors("positive/pr_curves")
    assert curve.step == 7
