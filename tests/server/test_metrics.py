"""Tests the lag of the event loop, as the server's metrics report it."""

import asyncio
import re
import time

from keras_bert.server.metrics import Metrics


def counts(metrics: Metrics) -> dict[str, float]:
    """Returns {upper limit in seconds: the number of measurements up to it}."""
    text = metrics.text().decode()
    pairs = re.findall(r'event_loop_lag_seconds_bucket{le="(.+)"} (.+)', text)
    return {limit: float(count) for limit, count in pairs}


def test_a_callback_that_stops_the_event_loop_shows_in_its_lag():
    metrics = Metrics()

    async def run() -> None:
        measuring = asyncio.create_task(metrics.observe_loop_lag())
        await asyncio.sleep(0.1)
        time.sleep(0.6)  # Blocks the loop.
        await asyncio.sleep(0.1)
        measuring.cancel()

    asyncio.run(run())
    found = counts(metrics)
    assert found["1.0"] - found["0.5"] == 1
    assert found["+Inf"] > 2
    assert found["+Inf"] == found["1.0"]


def test_an_idle_event_loop_is_measured_every_20_milliseconds():
    metrics = Metrics()

    async def run() -> None:
        measuring = asyncio.create_task(metrics.observe_loop_lag())
        await asyncio.sleep(0.5)
        measuring.cancel()

    asyncio.run(run())
    assert 3 <= counts(metrics)["+Inf"] <= 25
