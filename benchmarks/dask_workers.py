"""Measures how much faster two Dask workers create pre-training data than one.

    .venv/bin/python benchmarks/dask_workers.py --vocab_file=vocab.txt [--rounds=3] [--kill]

Needs `.beam` (`make beam`). Starts a scheduler and one or two workers with one thread each, and
creates the records of gutenberg-85 (85 books, 60.6 MB, --dupe_factor=5) on them, after those of one
book, for which the workers import their packages. The time is measured from the log line that the
client is connected to the end of the program, as is the CPU time of each of the processes: as they
share the cores of the machine, their sum divided by its cores is a lower bound of the time. The
numbers of workers take turns. With --kill, one more build loses one of two workers by SIGKILL. All
records must have the same bytes.
"""

import contextlib
import hashlib
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
from absl import app, flags
from workers import ROOT

flags.DEFINE_string("vocab_file", None, "vocabulary", required=True)
flags.DEFINE_integer("rounds", 3, "rounds of one and of two workers", lower_bound=1)
flags.DEFINE_boolean("kill", False, "build once more, and kill one of two workers on the way")
FLAGS = flags.FLAGS

CORPUS = ROOT.parent / "shared" / "data" / "corpus" / "gutenberg-85"
BEAM = ROOT / ".beam" / "bin"


class Cluster(NamedTuple):
    """The address and process of a scheduler, and the process that starts its workers."""

    address: str
    num_workers: int
    scheduler: psutil.Process
    workers: psutil.Process


class Times(NamedTuple):
    """The seconds of a build, and the CPU seconds of its processes."""

    elapsed: float
    client: float
    scheduler: float
    workers: float

    def __str__(self) -> str:
        return (
            f"{self.elapsed:.1f} s; CPU seconds: client {self.client:.1f}, scheduler "
            f"{self.scheduler:.1f}, workers {self.workers:.1f}, sum {sum(self[1:]):.1f}"
        )


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the CPU seconds of a process and its descendants so far."""
    times = [found.cpu_times() for found in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


@contextlib.contextmanager
def cluster(num_workers: int, folder: Path) -> Iterator[Cluster]:
    """Starts a scheduler and workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    commands = [
        ["scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard"],
        ["worker", address, f"--nworkers={num_workers}", "--nthreads=1", "--no-dashboard"],
    ]
    commands[1] += [f"--local-directory={folder}", "--host=127.0.0.1"]
    processes = []
    try:
        for command in commands:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            processes.append(subprocess.Popen([BEAM / "dask", *command], cwd=ROOT, **quiet))
            time.sleep(5)
        yield Cluster(address, num_workers, *(psutil.Process(process.pid) for process in processes))
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def kill_a_worker(cluster: Cluster) -> None:
    """Kills the worker that has used the most CPU time; Dask starts another one in its place."""
    children = cluster.workers.children(recursive=True)
    used = {child: sum(child.cpu_times()[:2]) for child in children}
    worker = max(used, key=used.get)
    print(f"killing a worker after {used[worker]:.1f} CPU seconds", flush=True)
    worker.kill()


def build(cluster: Cluster, books: str, output_dir: Path, kill_after: float = math.inf) -> Times:
    """Creates the records of books; the times are those since the client was connected.

    A worker is killed `kill_after` seconds after the client is connected.
    """
    command = [BEAM / "python", "-m", "data_tools.create_pretraining_data"]
    command += [
        f"--input_file={CORPUS}/{books}.txt.xz",
        "--input_format=gutenberg",
        "--language=en",
    ]
    command += [f"--vocab_file={FLAGS.vocab_file}", f"--output_dir={output_dir}"]
    command += ["--dupe_factor=5", "--runner=DaskRunner", "--"]
    command += [f"--dask_client_address={cluster.address}"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    others = [cluster.scheduler, cluster.workers]
    start, log, killer = None, [], threading.Timer(kill_after, kill_a_worker, [cluster])
    for line in process.stderr:
        log.append(line)
        if start is None and re.search(rf": {cluster.num_workers} workers?$", line):
            used = map(cpu_seconds, [psutil.Process(process.pid), *others])
            start = Times(time.perf_counter(), *used)
            if kill_after < math.inf:
                killer.start()
    killer.cancel()
    _, status, usage = os.wait4(process.pid, 0)
    if status or start is None:
        sys.exit("".join(log[-20:]))
    used = [usage.ru_utime + usage.ru_stime, *map(cpu_seconds, others)]
    return Times(
        *(end - begin for begin, end in zip(start, [time.perf_counter(), *used], strict=True))
    )


def digest(folder: Path) -> str:
    """Returns a hash of the bytes of all record files of a folder."""
    sha = hashlib.sha256()
    for path in sorted(folder.glob("*.tfrecord*")):
        sha.update(path.read_bytes())
    return sha.hexdigest()


def main(argv: Sequence[str]) -> None:
    """Runs the rounds and prints the seconds and ratios."""
    del argv
    times: dict[int, list[Times]] = {1: [], 2: []}
    digests = set()
    for _ in range(FLAGS.rounds):
        for num_workers, found in times.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                with cluster(num_workers, folder / "dask") as started:
                    build(started, "iliad", folder / "warm_up")
                    found.append(build(started, "*", folder / "records"))
                digests.add(digest(folder / "records"))
            print(f"workers: {num_workers}; {found[-1]}", flush=True)
    ratios = [one.elapsed / two.elapsed for one, two in zip(times[1], times[2], strict=True)]
    print(f"two workers: {median(ratios):.2f} x one ({min(ratios):.2f} to {max(ratios):.2f})")
    if FLAGS.kill:
        with tempfile.TemporaryDirectory() as name, cluster(2, Path(name) / "dask") as started:
            build(started, "iliad", Path(name) / "warm_up")
            killed = build(started, "*", Path(name) / "records", kill_after=15)
            digests.add(digest(Path(name) / "records"))
        print(f"with a killed worker: {killed.elapsed:.1f} s")
    print(f"different contents: {len(digests) - 1}")


if __name__ == "__main__":
    app.run(main)
