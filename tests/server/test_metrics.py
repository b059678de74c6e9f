"""Tests the lag of the event loop, as the server's metrics report it."""

import asyncio
import re
import time

from keras_bert.server.metrics import Metrics


def test_lag_is_measured_every_20_milliseconds_and_shows_a_stopped_event_loop():
    metrics = Metrics()

    async def run() -> None:
        measuring = asyncio.create_task(metrics.observe_loop_lag())
        await asyncio.sleep(0.3)
        time.sleep(0.6)  # Blocks the loop.
        await asyncio.sleep(0.1)
        measuring.cancel()

    asyncio.run(run())
    pairs = re.findall(r'event_loop_lag_seconds_bucket{le="(.+)"} (.+)', metrics.text().decode())
    counts = {limit: float(count) for limit, count in pairs}  # upper limit -> measurements up to it
    assert counts["1.0"] - counts["0.5"] >= 1  # Other processes may stop the loop, too.
    assert 3 <= counts["+Inf"] == counts["1.0"] <= 25
