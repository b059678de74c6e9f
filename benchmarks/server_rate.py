"""Compares the rate of the server under 64 clients with the rate of its engine without a server.

    apt-get install wrk
    .venv/bin/python benchmarks/server_rate.py --export_dir=serving/mrpc [--rounds=5]

`--export_dir` has version 1 of an exported classifier of pairs, with the files of all engines. In
each turn, a process calls the exported signature with batches of 64 pairs of MRPC's development
set, then wrk sends the same pairs to the server, one per request, on `--clients` connections. wrk
and the server share the cores of the machine. The last columns are the CPU time per pair of the
calls without a server, of the server, and of wrk.
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

import numpy as np
from absl import app, flags
from server import FLAGS, check_export_dir, read_instances, start_server
from workers import answer, start_worker

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

flags.DEFINE_list(
    "engines",
    ["tensorflow:float32", "onnxruntime:float32", "onnxruntime:int8", "openvino:bfloat16"],
    "engines with their precisions",
)
flags.DEFINE_string("worker", None, "internal: engine:precision,version")


def work(engine: str, precision: str, folder: Path) -> None:
    """Calls the engine CALLS times for each line on stdin; prints the pairs per second."""
    from serving_contenders import make_signature

    classify = make_signature(engine, precision, folder)
    rows = read_instances(pair=True)
    sides = [[row[name] for row in rows] for name in ("text", "text_pair")]
    batches = [[side[i : i + BATCH] for side in sides] for i in range(0, len(rows) - BATCH, BATCH)]
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


def run_wrk(url: str, folder: Path, seconds: float) -> dict[str, float]:
    """Sends the pairs with wrk; returns "rate", and "p50" and "p99" of the latency in seconds."""
    bodies, script = folder / "bodies", folder / "wrk.lua"
    lines = [json.dumps({"instances": [row]}) for row in read_instances(pair=True)]
    bodies.write_text("\n".join(lines))
    script.write_text(LUA.replace("BODIES", str(bodies)))
    command = ["wrk", "-t1", f"-c{FLAGS.clients}", f"-d{seconds:.0f}s", "--timeout=60s"]
    command += ["--latency", "-s", script, f"{url}/v1/models/model:predict"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if failed := re.search(r"Socket errors.*|Non-2xx.*", report):
        sys.exit(f"wrk: {failed[0]}")
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


def measure_served(server: int, url: str, folder: Path) -> dict[str, float]:
    """Returns the figures of `run_wrk`, and the CPU time per pair of the "server" and of "wrk"."""
    of_server, of_wrk = cpu_seconds(server), cpu_seconds_of_children()
    figures = run_wrk(url, folder, FLAGS.seconds)
    pairs = figures["rate"] * FLAGS.seconds
    figures["server"] = (cpu_seconds(server) - of_server) / pairs
    figures["wrk"] = (cpu_seconds_of_children() - of_wrk) / pairs
    return figures


def compare(engine: str, precision: str) -> None:
    """Runs the turns of one engine, and prints its row of the table."""
    name = f"{engine}:{precision}"
    worker = start_worker(".venv", __file__, f"{name},{Path(FLAGS.export_dir) / '1'}")
    answer(worker)
    server, url = start_server(f"--engine={engine}", f"--engine_precision={precision}")
    threading.Thread(target=server.stderr.read, daemon=True).start()  # Else the pipe fills.
    alone, served = [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_wrk(url, Path(folder), 3)  # Warm-up.
            for _ in range(FLAGS.rounds):
                worker.stdin.write("\n")
                worker.stdin.flush()
                alone.append(answer(worker))
                served.append(measure_served(server.pid, url, Path(folder)))
    finally:
        worker.stdin.close()
        server.send_signal(signal.SIGTERM)
    worker.wait()
    server.wait()
    ratios = [each["rate"] / own["rate"] for each, own in zip(served, alone, strict=True)]
    rates = [median(each["rate"] for each in turns) for turns in (alone, served)]
    cells = [name, *(f"{rate:.0f}" for rate in rates), f"{median(ratios):.2f}"]
    cells += [f"{1e3 * np.median([each[p] for each in served]):.0f}" for p in ("p50", "p99")]
    cells += [f"{1e3 * np.median([each['cpu'] for each in alone]):.2f}"]
    cells += [f"{1e3 * np.median([each[p] for each in served]):.2f}" for p in ("server", "wrk")]
    print(f"| {' | '.join(cells)} |", flush=True)


def main(_) -> None:
    """Compares each engine with its server."""
    if FLAGS.worker:
        name, folder = FLAGS.worker.split(",")
        return work(*name.split(":"), Path(folder))
    check_export_dir()
    columns = (
        "engine",
        "batches of 64, pairs/s",
        "server, requests/s",
        "ratio",
        "p50 ms",
        "p99 ms",
    )
    columns += tuple(f"CPU ms: {name}" for name in ("alone", "server", "wrk"))
    print(f"| {' | '.join(columns)} |\n| {' | '.join(['---'] * len(columns))} |")
    for name in FLAGS.engines:
        compare(*name.split(":"))
    return None


if __name__ == "__main__":
    app.run(main)
