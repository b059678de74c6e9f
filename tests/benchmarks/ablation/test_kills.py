"""The study of benchmarks/ablation.py resumes after signals at any point of its programs."""

import signal
import subprocess
import sys
import time

import pytest

from tests.benchmarks.ablation.test_programs import miniature_plan, write_inputs

# Runs a study of one arm and one task in a process of its own.
STUDY = """
import sys
from pathlib import Path

root, folder, work = map(Path, sys.argv[1:])
sys.path[:0] = [str(root), str(root / "benchmarks")]
import ablation.corpus
import ablation.results
import ablation.study
from ablation import programs
from tests.benchmarks.ablation.test_kills import study_of

programs.NICENESS = 0
plan, results, folders = study_of(ablation, folder, work)
try:
    ablation.study.run_study(plan, ablation.study.Selection(), results, folders)
except programs.Stopped:
    sys.exit(programs.STOPPED)
"""


def study_of(ablation, folder, work):
    """Returns the plan, the results and the folders of the study in a work folder."""
    arm = ablation.plan.Arm("miniature", str(folder / "config.json"), "mlm", tasks=("MRPC",))
    plan = miniature_plan(ablation, folder, arm, steps=40)
    results = ablation.results.Results(work / "results", plan)
    return plan, results, ablation.corpus.Folders(folder / "data", work)


@pytest.fixture
def start(root, tmp_path):
    """Returns a function that starts the study in a work folder."""

    def start(work):
        return subprocess.Popen([sys.executable, "-c", STUDY, root, tmp_path, work])

    return start


def stop(process, number, file):
    """Sends a signal as soon as a file exists, and returns the exit code."""
    end = time.monotonic() + 120
    while not file.exists():
        assert process.poll() is None, f"the study ended without {file}"
        assert time.monotonic() < end, f"{file} is missing"
        time.sleep(0.02)
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.slow
def test_study_resumes_after_signals_in_programs(ablation, start, tmp_path):
    write_inputs(tmp_path)
    work, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    run, fine_tuning = work / "pretraining/miniature", work / "fine_tuning/miniature/MRPC-seed-0"
    stopped = ablation.programs.STOPPED
    for number, file, code in (
        (signal.SIGKILL, work / "data/vocab.txt", -signal.SIGKILL),
        (signal.SIGKILL, run / "phase-1/metrics.jsonl", -signal.SIGKILL),
        (signal.SIGTERM, run / "phase-2/run.json", stopped),
        (signal.SIGKILL, fine_tuning / "run.json", -signal.SIGKILL),
        (signal.SIGTERM, fine_tuning / "metrics.jsonl", stopped),
    ):
        assert stop(start(work), number, file) == code
    assert start(work).wait(300) == 0
    assert start(undisturbed).wait(300) == 0
    figures = []
    for folder in (work, undisturbed):
        plan, results, _ = study_of(ablation, tmp_path, folder)
        found = [results.get(unit).figures for unit in ablation.units.units_of(plan.arms[0], plan)]
        found[0].pop("tokens_per_second")
        figures.append(found)
    assert figures[0] == figures[1]
