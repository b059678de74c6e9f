"""Logging: metrics.jsonl, signs of progress at fixed intervals, progress bars, TensorBoard."""

import contextlib
import io
import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from keras_bert.errors import InputError
from keras_bert.training import log
from keras_bert.training.log import RunLog, progress
from keras_bert.training.objective import Objective, StepMetrics, TrainState

# --- steps of a run ---


class PairObjective(Objective):
    metrics, losses, rows_per_example = ("nll",), {"nll": 0.0}, 2


OBJECTIVE = PairObjective()


def steps(*losses):
    """Returns the metrics of steps of 8 rows, 40 tokens and 1000 FLOP."""
    ones = np.ones(len(losses))
    counts = 40 * ones, 8 * ones, 1e3 * ones
    norms = np.where(np.isfinite(losses), 1.0, np.inf)
    return StepMetrics(np.array([losses]).T, ones[:, None], *counts, ones, norms, 1e-4 * ones)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts or resumes the log of a run of 40 steps."""
    state = TrainState(None, None, OBJECTIVE)
    with contextlib.ExitStack() as opened:

        def make(step=0, state=state, **settings):
            run_log = RunLog(tmp_path, state, step, 40, **settings)
            opened.callback(run_log.close)
            return run_log

        yield make


@pytest.fixture
def lines(tmp_path):
    """Returns a function that reads the lines of metrics.jsonl without rates."""

    def read():
        rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        ignored = ("nll", "learning_rate", "gradient_norm", "eval_nll")
        return [
            {n: v for n, v in row.items() if n not in ignored and "per_second" not in n}
            for row in rows
        ]

    return read


def write(run_log, *losses):
    run_log.add(steps(*losses))
    run_log.write_steps()


def test_each_line_averages_its_steps_and_evaluation_metrics_have_a_prefix(start, lines, tmp_path):
    run_log = start()
    run_log.add(steps(2.0))
    write(run_log, 3.0, 4.0)
    run_log.write_evaluation({"loss": 3.5})
    run_log.close()
    assert lines() == [{"step": 3, "loss": 3.0}, {"step": 3, "eval_loss": 3.5}]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name, value in (("loss", 3.0), ("eval_loss", 3.5)):
        (event,) = events.Tensors(name)
        assert (event.step, make_ndarray(event.tensor_proto)) == (3, value)


def test_skipped_steps_do_not_count_in_averages(start, tmp_path):
    run_log = start(state=TrainState(None, None, OBJECTIVE, loss_scale=object()))
    write(run_log, 2.0, np.inf, 4.0, np.nan)
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    expected = {"step": 4, "loss": 3.0, "nll": 3.0, "gradient_norm": 1.0, "loss_scale": 1.0}
    assert row == {**expected, "learning_rate": 1e-4}


def test_rates_exclude_the_compilation_and_evaluations(start, monkeypatch, tmp_path):
    clock = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    run_log = start(peak=5e3)
    for seconds in (100.0, 2.0):  # The first call compiles.
        clock[0] += seconds
        run_log.add(steps(1.0, 1.0))
    clock[0] += 50.0  # An evaluation.
    run_log.restart_clock()
    clock[0] += 2.0
    write(run_log, 1.0, 1.0)
    expected = {"examples_per_second": 4.0, "tokens_per_second": 40.0, "mfu": 0.2}
    assert run_log.rates() == pytest.approx(expected)
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    clock[0] += 4.0
    write(run_log, 1.0, 1.0)
    assert run_log.rates()["examples_per_second"] == 3.0  # of the whole run


def test_resumed_run_drops_later_lines_and_names_where_its_first_one_starts(start, lines):
    run_log = start()
    for loss in (3.0, 2.0, 1.0):
        write(run_log, *[loss] * 10)
    start(15).close()
    assert lines() == [{"step": 10, "loss": 3.0}]
    run_log = start(15)
    run_log.write_evaluation({"loss": 5.0})
    write(run_log, *[4.0] * 5)
    write(run_log, 3.0)
    assert lines()[1:] == [
        {"step": 15, "eval_loss": 5.0},
        {"step": 20, "resumed_at_step": 15, "loss": 4.0},
        {"step": 21, "loss": 3.0},
    ]
    start(0)
    assert lines() == []


@pytest.mark.parametrize("incomplete", ['{"step": 20, "lo', '{"st', "{}"])
def test_incomplete_last_line_is_dropped_when_resuming(start, lines, tmp_path, incomplete):
    write(start(), *[1.0] * 10)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(incomplete)
    write(start(20), 2.0)
    assert lines() == [
        {"step": 10, "loss": 1.0},
        {"step": 21, "resumed_at_step": 20, "loss": 2.0},
    ]


def test_full_disk_for_tensorboard_raises_an_error_that_names_it(start, tmp_path):
    """Limits the file size to the current one: TensorFlow's error is that of a full disk."""
    run_log = start()
    (events,) = (tmp_path / "tensorboard").iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (events.stat().st_size, before[1]))
    try:
        message = r"tensorboard: cannot be written \(File too large\)$"
        # After the error, TensorFlow keeps the writer as the default of the thread.
        with ThreadPoolExecutor() as thread, pytest.raises(InputError, match=message):
            thread.submit(run_log.write_evaluation, {"loss": 1.0}).result()
        run_log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_calls_report_the_compilation_or_the_step_and_lines_postpone_them(
    start, monkeypatch, caplog
):
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.2)
    monkeypatch.setattr(log, "_SECONDS_TO_CHECK", 0.02)
    run_log = start()
    with caplog.at_level("INFO", "absl"):
        with run_log.during_steps():
            assert caplog.messages == ["Compiling the training step"]
            wait_until(lambda: len(caplog.messages) >= 2)
        assert caplog.messages[1].startswith("Compiling the training step: ")
        run_log.add(steps(1.0, 1.0, 1.0))
        caplog.clear()
        time.sleep(0.5)
        assert caplog.messages == []  # Nothing is reported between two calls.
        with run_log.during_steps():
            wait_until(lambda: len(caplog.messages) >= 2)
        run_log.close()
    assert caplog.messages[0].startswith("step 3/40, time left unknown")
    assert "; the next steps take " in caplog.messages[-1]


def test_log_lines_have_at_most_six_figures_and_the_time_left(start, monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    run_log = start(peak=5e3)
    with caplog.at_level("INFO", "absl"):
        for seconds, count in ((30, 1), (1, 1), (299, 3)):  # The first call compiles.
            clock[0] += seconds
            write(run_log, *[1.0] * count)
        run_log.write_evaluation({f"metric_{i}": i for i in range(9)})
    assert caplog.messages == [
        "step 1/40 loss=1 learning_rate=0.0001, time left unknown",
        "step 2/40 loss=1 learning_rate=0.0001 examples_per_second=4, 38 s left",
        "Estimated time of the training: 49 min",
        "step 5/40 loss=1 learning_rate=0.0001 examples_per_second=0.04013, 44 min left",
        "step 5/40 eval_metric_0=0 eval_metric_1=1 eval_metric_2=2 eval_metric_3=3 eval_metric_4=4",
    ]


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
@pytest.mark.parametrize("long", [False, True])
def test_short_work_and_other_workers_show_no_progress(stream, long, request, caplog, monkeypatch):
    if long:
        request.getfixturevalue("at_once")
    monkeypatch.setattr(sys, "stderr", stream())
    with caplog.at_level("INFO", "absl"):
        work(silent=long)
    assert sys.stderr.getvalue() == ""
    assert not caplog.records


# --- experiment trackers ---


def test_tracker_that_fails_is_logged_and_the_run_continues(start, lines, caplog, monkeypatch):
    """With modules in the place of MLflow, whose server is lost after the first line."""

    class Callback(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            reported.append(epoch)
            if epoch > 1:
                raise ConnectionError("no route to host\nmore")

    @contextlib.contextmanager
    def start_run(run_name):
        yield
        raise ConnectionError("closed")

    reported = []
    mlflow = SimpleNamespace(start_run=start_run, log_params=len)
    mlflow.keras = SimpleNamespace(MlflowCallback=Callback)
    for name, module in (("mlflow", mlflow), ("mlflow.keras", mlflow.keras)):
        monkeypatch.setitem(sys.modules, name, module)
    model = SimpleNamespace(compile=lambda **_: None)
    run_log = start(state=TrainState(model, None, OBJECTIVE), report_to=["mlflow"])
    for loss in (3.0, 2.0, 1.0):
        write(run_log, loss)
    run_log.close()
    assert reported == [1, 2]
    assert lines() == [{"step": step, "loss": 4.0 - step} for step in (1, 2, 3)]
    end = "; the run continues without it"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"--report_to: Callback failed: ConnectionError: no route to host{end}",
        f"--report_to: the end of the run failed: ConnectionError: closed{end}",
    ]
