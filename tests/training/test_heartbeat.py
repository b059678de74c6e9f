"""While a call runs and nothing else is logged, a line appears at fixed intervals."""

import time

import pytest

from keras_bert.training import heartbeat
from keras_bert.training.summaries import Summaries


@pytest.fixture
def quick(monkeypatch):
    """Reports after 0.2 seconds instead of ten."""
    monkeypatch.setattr(heartbeat, "SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "_SECONDS_TO_CHECK", 0.02)


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_it_reports_only_during_calls(quick):
    reports = []
    beat = heartbeat.Heartbeat(reports.append)
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
    beat = heartbeat.Heartbeat(reports.append)
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
