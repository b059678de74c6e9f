"""Measures the server under one and under 64 clients, and compares it with its engine alone.

    apt-get install wrk
    .venv/bin/python benchmarks/server.py --export_dir=serving/mrpc [--engines=openvino:bfloat16]

`--export_dir` has an exported classifier of pairs, with the files of the engines. In each turn, a
process calls `keras_bert.load(EXPORT, engine).predict` on batches of 64 pairs of MRPC's development
set. Then wrk sends the same pairs to the server, one per request, on one connection and on
`--clients` connections. A connection sends its next request when it has its answer. wrk and the
server share the cores of the machine. A request without an answer, or with another status than 200,
ends the program.

"ratio" is the rate with `--clients` connections divided by that of the engine alone. The last
columns are the CPU time per pair of the engine alone, of the server, and of wrk.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from absl import app, flags
from texts import mrpc_pairs
from workers import ROOT, Worker, open_export, python_of, table

BATCH, CALLS = 64, 10
# Each request has the next line of the file BODIES.
LUA = """
local bodies, n = {}, 0
for line in io.lines("BODIES") do bodies[#bodies + 1] = line end
request = function()
  n = n + 1
  return wrk.format("POST", nil, nil, bodies[n % #bodies + 1])
end
"""
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}  # wrk's units.

flags.DEFINE_string("export_dir", "", "folder with the versions of an exported classifier")
flags.DEFINE_integer("clients", 64, "number of simultaneous clients", lower_bound=2)
flags.DEFINE_float("seconds", 8.0, "seconds of a turn with each number of clients", lower_bound=1)
flags.DEFINE_integer("rounds", 3, "turns of each engine", lower_bound=1)
flags.DEFINE_list("server_flags", [], "flags for the server, such as --num_batch_threads=1")
flags.DEFINE_list(
    "engines",
    ["tensorflow:float32", "onnxruntime:float32", "onnxruntime:int8", "openvino:bfloat16"],
    "engines with their precisions",
)
flags.DEFINE_string("worker", None, "internal: engine,precision,version")
FLAGS = flags.FLAGS


def start_server(*more_flags: str) -> tuple[subprocess.Popen, str]:
    """Starts the server with --server_flags and more flags; returns its process and its address."""
    if not FLAGS.export_dir:
        sys.exit("--export_dir is required")
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
            # Else the pipe fills.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, match[0]
    raise RuntimeError(f"exit code of the server: {server.wait()}")


def run_wrk(url: str, lua: str, clients: int, seconds: float) -> str:
    """Sends requests to a URL with wrk for a number of seconds; returns wrk's report."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua)
        script.flush()
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--timeout=60s"]
        command += ["--latency", "-s", script.name, url]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rate_of(url: str, bodies: Path, clients: int, seconds: float) -> dict[str, float]:
    """Returns "rate", and "p50" and "p99" of the latency in seconds."""
    report = run_wrk(url, LUA.replace("BODIES", str(bodies)), clients, seconds)
    if errors := re.search(r"Socket errors.*|Non-2xx.*", report):
        sys.exit(f"wrk: {errors[0]}")
    latency = {
        f"p{share}": float(value) * SECONDS[unit]
        for share, value, unit in re.findall(r"(50|99)% +([0-9.]+)(us|ms|s)", report)
    }
    return {"rate": float(re.search(r"Requests/sec: +([0-9.]+)", report)[1]), **latency}


def cpu_seconds(process: int) -> float:
    """Returns the CPU time of a running process."""
    # The name, in parentheses, may contain spaces.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_of_children() -> float:
    """Returns the CPU time of the ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def work(engine: str, precision: str, version: Path) -> None:
    """Calls the engine CALLS times for each line on stdin; prints the pairs per second."""
    classify = open_export(version, engine, precision)
    first, second, _ = mrpc_pairs()
    starts = range(0, len(first) - BATCH, BATCH)
    batches = [(first[i : i + BATCH], second[i : i + BATCH]) for i in starts]
    for batch in batches:
        classify(*batch)
    print("{}", flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        for call in range(CALLS):
            classify(*batches[call % len(batches)])
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
        pairs = CALLS * BATCH
        print(json.dumps({"rate": pairs / seconds, "cpu": cpu / pairs}), flush=True)


def compare(engine: str, precision: str, version: Path) -> list[str]:
    """Runs the turns of one engine, and returns its row of the table."""
    worker = Worker(__file__, f"{engine},{precision},{version}", python_of("ours"))
    server, url = start_server(f"--engine={engine}", f"--engine_precision={precision}")
    url += "/v1/models/model:predict"
    turns = []
    try:
        with tempfile.NamedTemporaryFile("w") as file:
            for first, second, _ in zip(*mrpc_pairs(), strict=True):
                instance = {"text": first, "text_pair": second}
                file.write(json.dumps({"instances": [instance]}) + "\n")
            file.flush()
            bodies = Path(file.name)
            rate_of(url, bodies, FLAGS.clients, 3)  # Warm-up.
            for _ in range(FLAGS.rounds):
                turn = {"alone": worker.ask(), "one": rate_of(url, bodies, 1, FLAGS.seconds)}
                before = cpu_seconds(server.pid), cpu_seconds_of_children()
                turn["many"] = rate_of(url, bodies, FLAGS.clients, FLAGS.seconds)
                after = cpu_seconds(server.pid), cpu_seconds_of_children()
                pairs = turn["many"]["rate"] * FLAGS.seconds
                turn["cpu"] = {
                    name: (end - begin) / pairs
                    for name, begin, end in zip(("server", "wrk"), before, after, strict=True)
                }
                turns.append(turn)
    finally:
        worker.close()
        server.send_signal(signal.SIGTERM)
        server.wait()

    def of(part: str, figure: str, factor: float = 1) -> float:
        return factor * median(turn[part][figure] for turn in turns)

    cells = [f"{engine}:{precision}", f"{of('alone', 'rate'):.0f}"]
    for clients in ("one", "many"):
        cells.append(f"{of(clients, 'rate'):.0f}")
        cells.append(f"{of(clients, 'p50', 1e3):.1f}, {of(clients, 'p99', 1e3):.1f}")
    cells.append(f"{median(t['many']['rate'] / t['alone']['rate'] for t in turns):.2f}")
    cpu = (of("alone", "cpu", 1e3), of("cpu", "server", 1e3), of("cpu", "wrk", 1e3))
    return [*cells, *(f"{milliseconds:.2f}" for milliseconds in cpu)]


def main(_) -> None:
    """Compares each engine with its server."""
    if FLAGS.worker:
        engine, precision, version = FLAGS.worker.split(",")
        return work(engine, precision, Path(version))
    versions = Path(FLAGS.export_dir).glob("[0-9]*")
    newest = max(versions, key=lambda path: int(path.name), default=None)
    if not FLAGS.export_dir or newest is None:
        sys.exit(f"--export_dir={FLAGS.export_dir}: expected a folder of exported versions")
    many = f"{FLAGS.clients} clients"
    header = ["engine", "alone, pairs/s", "1 client, requests/s", "p50, p99 ms"]
    header += [f"{many}, requests/s", "p50, p99 ms", "ratio"]
    header += [f"CPU ms: {name}" for name in ("alone", "server", "wrk")]
    table(header, (compare(*name.split(":"), newest.absolute()) for name in FLAGS.engines))
    return None


if __name__ == "__main__":
    app.run(main)
