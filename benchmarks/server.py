"""Measures the server under concurrent clients: throughput, latency, and correct answers.

    .venv/bin/python benchmarks/server.py --export_dir=serving/mrpc [--clients=64] [--rounds=5]

`--export_dir` is an exported classifier of texts or pairs; the texts are those of MRPC's
development set. The server is a separate process, and this process runs the clients, each of which
sends its next request when it has its answer. Turns of `--seconds` alternate between one client and
`--clients` clients.

A request counts as an error if its status is not 200, as wrong if its answer differs from the
answer to the same text sent alone, and as lost if there is no answer.
"""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import aiohttp
from absl import app, flags
from workers import ROOT

TEXTS = ROOT.parent / "shared" / "data" / "glue" / "MRPC" / "dev.tsv"

flags.DEFINE_string("export_dir", "", "folder with the versions of an exported classifier")
flags.DEFINE_integer("clients", 64, "number of simultaneous clients", lower_bound=2)
flags.DEFINE_integer("rounds", 5, "rounds with each number of clients", lower_bound=1)
flags.DEFINE_float("seconds", 5.0, "seconds per round", lower_bound=0.1)
flags.DEFINE_list("server_flags", [], "flags for the server, such as --num_batch_threads=1")
FLAGS = flags.FLAGS


def read_instances(pair: bool) -> list[dict[str, str]]:
    """Reads MRPC's development set as request instances."""
    rows = [line.split("\t") for line in TEXTS.read_text("utf-8-sig").splitlines()[1:]]
    if pair:
        return [{"text": row[3], "text_pair": row[4]} for row in rows]
    return [{"text": row[3]} for row in rows]


def check_export_dir() -> None:
    """Ends the program if --export_dir is missing; not a required flag, as workers lack it."""
    if not FLAGS.export_dir:
        sys.exit("--export_dir is required")


def start_server(*more_flags: str) -> tuple[subprocess.Popen, str]:
    """Starts the server with --server_flags and more flags; returns its process and its address."""
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "keras_bert", "serve"),
            *(f"--export_dir={FLAGS.export_dir}", "--port=0", *FLAGS.server_flags, *more_flags),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in server.stderr:
        if match := re.search(r"http://\S+", line):
            return server, match[0]
    raise RuntimeError(f"exit code of the server: {server.wait()}")


class Clients:
    """Sends requests, and compares each answer with the first one to the same text."""

    def __init__(self, session: aiohttp.ClientSession, url: str, instances: list[dict[str, str]]):
        self.session = session
        self.url = f"{url}/v1/models/model:predict"
        self.bodies = [json.dumps({"instances": [one]}) for one in instances]
        self.answers: dict[int, dict] = {}
        self.sent = self.right = self.errors = self.wrong = 0

    @property
    def lost(self) -> int:
        """Number of requests without an answer, valid when all requests have ended."""
        return self.sent - self.right - self.errors - self.wrong

    async def ask(self) -> float:
        """Sends the next text and returns the seconds until its answer."""
        number = self.sent % len(self.bodies)
        self.sent += 1
        started = time.perf_counter()
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # The request is lost.
            async with self.session.post(self.url, data=self.bodies[number]) as response:
                answer = await response.json()
            if response.status != 200:
                self.errors += 1
            elif same(row := answer["predictions"][0], self.answers.setdefault(number, row)):
                self.right += 1
            else:
                self.wrong += 1
        return time.perf_counter() - started

    async def take_turn(self, clients: int, seconds: float) -> tuple[float, list[float]]:
        """Runs `clients` concurrent clients for `seconds` seconds.

        Returns requests per second, and the seconds of each request.
        """
        times: list[float] = []
        started = time.perf_counter()

        async def one() -> None:
            while time.perf_counter() - started < seconds:
                times.append(await self.ask())

        await asyncio.gather(*(one() for _ in range(clients)))
        return len(times) / (time.perf_counter() - started), times


def same(one: dict, other: dict) -> bool:
    """Returns whether two answers are equal except for rounding, which depends on the batch."""
    close = all(
        abs(p - q) < 1e-3 for p, q in zip(one["probabilities"], other["probabilities"], strict=True)
    )
    return close and one.keys() == other.keys()


def percentile(times: list[float], share: float) -> float:
    """Returns a percentile of times in seconds, in milliseconds; `share` is from 0 to 1."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


async def measure(url: str, pair: bool) -> dict[int, tuple[list[float], list[float]]]:
    """Returns {number of clients: (requests per second in each turn, seconds of each request)}.

    `pair` is whether the classifier takes pairs of texts.
    """
    found: dict[int, tuple[list[float], list[float]]] = {1: ([], []), FLAGS.clients: ([], [])}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        clients = Clients(session, url, read_instances(pair))
        for _ in clients.bodies:  # Sends each text alone, which also warms up the server.
            await clients.ask()
        await clients.take_turn(FLAGS.clients, 1.0)
        for _ in range(FLAGS.rounds):
            for count, (rates, times) in found.items():
                rate, seconds = await clients.take_turn(count, FLAGS.seconds)
                rates.append(rate)
                times += seconds
        print(f"requests   {clients.sent}")
        print(f"errors     {clients.errors}")
        print(f"wrong      {clients.wrong}")
        print(f"lost       {clients.lost}")
    return found


def main(argv: Sequence[str]) -> None:
    """Measures the server and prints its rates and latencies."""
    del argv
    check_export_dir()
    newest = max(Path(FLAGS.export_dir).glob("[0-9]*"), key=lambda path: int(path.name))
    pair = json.loads((newest / "export.json").read_text("utf-8"))["pair"]
    server, url = start_server()
    try:
        found = asyncio.run(measure(url, pair))
    finally:
        server.send_signal(signal.SIGTERM)
    print(f"exit code of the server: {server.wait()}")
    print(f"{'clients':>8} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}")
    for count, (rates, times) in found.items():
        p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
        print(f"{count:>8} {median(rates):>11.1f} {p50:>8.1f} {p99:>8.1f}")
    ratios = [many / one for one, many in zip(found[1][0], found[FLAGS.clients][0], strict=True)]
    spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
    print(f"{FLAGS.clients} clients / 1 at a time: {median(ratios):.2f} {spread} requests a second")


if __name__ == "__main__":
    app.run(main)
