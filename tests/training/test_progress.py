"""Long work reports its progress on stderr; short work does not."""

import io
import sys

import pytest

from keras_bert.training import progress as module
from keras_bert.training.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Reports progress immediately, as for long work."""
    monkeypatch.setattr(module, "_SECONDS_TO_BAR", 0.0)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)


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
