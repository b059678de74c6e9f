"""Measures how much faster two Dask workers create pre-training data than one.

    .venv/bin/python benchmarks/dask_workers.py --vocab_file=vocab.txt [--rounds=3]

Needs `.beam` (`make beam`). Starts a scheduler and one or two workers with one thread each, and
creates the records of gutenberg-85 (85 books, 60.6 MB, --dupe_factor=5) on them, after those of one
book, for which the workers import their packages. The time is measured from the log line that the
client is connected to the end of the program. The numbers of workers take turns. All records must
have the same bytes.
"""

import contextlib
import hashlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from absl import app, flags
from workers import ROOT

flags.DEFINE_string("vocab_file", None, "vocabulary", required=True)
flags.DEFINE_integer("rounds", 3, "rounds of one and of two workers", lower_bound=1)
FLAGS = flags.FLAGS

CORPUS = ROOT.parent / "shared" / "data" / "corpus" / "gutenberg-85"
BEAM = ROOT / ".beam" / "bin"


@contextlib.contextmanager
def cluster(num_workers: int, folder: Path) -> Iterator[str]:
    """Starts a scheduler and workers, and yields the address of the scheduler."""
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
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def build(address: str, num_workers: int, books: str, output_dir: Path) -> float:
    """Creates the records of books and returns the seconds since the client was connected."""
    command = [BEAM / "python", "-m", "data_tools.create_pretraining_data"]
    command += [
        f"--input_file={CORPUS}/{books}.txt.xz",
        "--input_format=gutenberg",
        "--language=en",
    ]
    command += [f"--vocab_file={FLAGS.vocab_file}", f"--output_dir={output_dir}"]
    command += ["--dupe_factor=5", "--runner=DaskRunner", "--", f"--dask_client_address={address}"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    connected, log = None, []
    for line in process.stderr:
        log.append(line)
        if connected is None and re.search(rf": {num_workers} workers?$", line):
            connected = time.perf_counter()
    if process.wait() or connected is None:
        sys.exit("".join(log[-20:]))
    return time.perf_counter() - connected


def digest(folder: Path) -> str:
    """Returns a hash of the bytes of all record files of a folder."""
    sha = hashlib.sha256()
    for path in sorted(folder.glob("*.tfrecord*")):
        sha.update(path.read_bytes())
    return sha.hexdigest()


def main(argv: Sequence[str]) -> None:
    """Runs the rounds and prints the seconds and ratios."""
    del argv
    seconds: dict[int, list[float]] = {1: [], 2: []}
    digests = set()
    for _ in range(FLAGS.rounds):
        for num_workers, found in seconds.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                with cluster(num_workers, folder / "dask") as address:
                    build(address, num_workers, "iliad", folder / "warm_up")
                    found.append(build(address, num_workers, "*", folder / "records"))
                digests.add(digest(folder / "records"))
            print(f"workers: {num_workers}; {found[-1]:.1f} s", flush=True)
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    print(f"two workers: {median(ratios):.2f} x one ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"different contents: {len(digests) - 1}")


if __name__ == "__main__":
    app.run(main)
