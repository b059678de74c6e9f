"""Simultaneous requests run as one batch, and each gets its own rows or its own error.

Also tests the lag of the event loop, as the server's metrics report it.
"""

import asyncio
import re
import threading
import time

import numpy as np

from keras_bert.server.batching import Batcher
from keras_bert.server.metrics import Metrics
from keras_bert.server.protocol import RestError
from keras_bert.server.settings import Settings


class FakeVersion:
    """Doubles numbers, counts letters, rejects 13, and waits while `gate` is closed."""

    def __init__(self):
        self.signatures = {
            "double": {"outputs": {"y": ["int32", [-1, 1]]}},
            "letters": {"outputs": {name: ["int32", [-1, -1]] for name in "abc"}},
        }
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = inputs["x"]
        self.batches.append(x.ravel().tolist())
        self.gate.wait()
        if signature == "letters":  # Padded to the longest, like the tagger.
            widest = max(map(len, x))
            texts = [[*(bytes([c]) for c in text), *[b""] * (widest - len(text))] for text in x]
            letters = np.array(texts, object).reshape(len(x), widest)
            places = np.where(letters.astype(bool), np.arange(widest), -1)
            return {"letters": letters, "places": places, "scores": (places >= 0) * 0.5}
        if 13 in x:
            raise RestError("unlucky")
        return {"y": 2 * x}


def make_batcher(**settings) -> Batcher:
    options = {"max_request_rows": 100, "max_response_values": 1_000_000, "num_batch_threads": 1}
    return Batcher(Settings(**(options | settings)), Metrics())


async def run(batcher: Batcher, version, signature: str, inputs: dict) -> dict:
    batcher.check(version, signature, inputs)
    sizes = []
    outputs = await batcher.run(version, signature, inputs, sizes.append)
    # The slices of an answer count as soon as they exist.
    assert sizes == sorted(set(sizes))
    return outputs


async def double(batcher: Batcher, version, *numbers: int) -> list:
    """Returns the outputs of a request with one row for each number."""
    inputs = {"x": np.array([[number] for number in numbers])}
    return (await run(batcher, version, "double", inputs))["y"].ravel().tolist()


def run_all(version, requests, signature="double", within=None, **settings):
    """Sends requests simultaneously; returns their outputs or errors in order."""

    async def main():
        batcher = make_batcher(**settings)
        calls = [run(batcher, version, signature, {"x": np.array(each)}) for each in requests]
        try:
            async with asyncio.timeout(within):
                return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(main())


def test_simultaneous_requests_form_one_batch_for_each_inner_shape():
    version = FakeVersion()
    answers = run_all(version, [[[1]], [[2], [3]], [[5, 6]], [[4]]])
    assert [answer["y"].tolist() for answer in answers] == [[[2]], [[4], [6]], [[10, 12]], [[8]]]
    assert version.batches == [[1, 2, 3, 4], [5, 6]]


def test_large_request_is_split_and_interleaved_with_others():
    version = FakeVersion()
    long = [[n] for n in range(10, 13)] + [[14]] * 2
    answers = run_all(version, [long, [[1]], [[2]]], max_batch_size=2)
    assert answers[0]["y"].tolist() == [[20], [22], [24], [28], [28]]
    assert version.batches == [[10, 11], [1, 2], [12, 14], [14]]
    assert run_all(version, [[[1]] * 100, [[1]] * 101])[1].message == (
        "The request has 101 rows; expected at most 100"
    )


def test_slices_of_unequal_width_are_padded():
    texts = [b"a", b"bc", b"", b"def"]
    complete, sliced = (
        run_all(FakeVersion(), [np.array(texts, object)], "letters", max_batch_size=rows)[0]
        for rows in (4, 2)
    )
    assert complete.keys() == sliced.keys()
    for name, array in complete.items():
        assert sliced[name].tolist() == array.tolist()
        assert sliced[name].dtype == array.dtype


def test_long_text_does_not_widen_outputs_of_other_requests():
    version = FakeVersion()
    requests = [[text] for text in (b"ab", b"x" * 100_000, b"c")]
    answers = run_all(version, [np.array(texts, object) for texts in requests], "letters")
    assert [answer["letters"].shape for answer in answers] == [(1, 2), (1, 100_000), (1, 2)]
    assert [len(batch) for batch in version.batches] == [2, 1]


def test_rest_of_a_cancelled_request_is_not_run():
    version = FakeVersion()

    async def main():
        batcher = make_batcher(max_batch_size=1)
        version.gate.clear()
        call = asyncio.create_task(double(batcher, version, *[1] * 50))
        while not version.batches:
            await asyncio.sleep(0.01)
        call.cancel()
        version.gate.set()
        answer = await double(batcher, version, 2)
        batcher.close()
        return answer

    assert asyncio.run(main()) == [4]
    assert version.batches == [[1], [2]]


def test_padded_answers_are_limited_before_they_are_computed():
    version = FakeVersion()
    wide = np.array([b"x" * 10_000, *[b"a"] * 39], object)
    (error,) = run_all(version, [wide], "letters")
    assert error.status == 400
    assert "40 rows, and a text or list of length 10000" in error.message
    assert "up to 1200000 values; expected at most 1000000" in error.message
    assert not version.batches
    # One long text, and the same rows without it, are answered.
    for texts in (np.array([b"x" * 500_000], object), wide[1:]):
        (answer,) = run_all(version, [texts], "letters")
        assert len(answer["letters"]) == len(texts)


def test_requests_that_arrive_during_a_batch_form_the_next_batch():
    version = FakeVersion()

    async def main():
        batcher = make_batcher()
        version.gate.clear()
        calls = [asyncio.create_task(double(batcher, version, 1))]
        while not version.batches:
            await asyncio.sleep(0.01)
        calls += [asyncio.create_task(double(batcher, version, n)) for n in (2, 3, 4)]
        await asyncio.sleep(0.01)
        calls.pop(2).cancel()  # It is not run.
        await asyncio.sleep(0.01)
        version.gate.set()
        answers = await asyncio.gather(*calls)
        batcher.close()
        return answers

    assert asyncio.run(main()) == [[2], [4], [8]]
    assert version.batches == [[1], [2, 4]]


def test_timeout_collects_requests_into_a_batch():
    version = FakeVersion()

    async def main():
        batcher = make_batcher(max_batch_size=3, batch_timeout_ms=200, num_batch_threads=4)

        async def later(n: int):
            await asyncio.sleep(0.01 * n)
            return await double(batcher, version, n)

        await asyncio.gather(*(later(n) for n in range(5)))
        batcher.close()

    asyncio.run(main())
    # Three requests fill a batch; two wait for more until the timeout.
    assert version.batches == [[0, 1, 2], [3, 4]]


def test_long_texts_do_not_wait_for_the_timeout():
    version = FakeVersion()
    texts = np.array([b"x" * 100_000], object)
    # A request that can be joined would wait for an hour.
    (answer,) = run_all(version, [texts], "letters", batch_timeout_ms=3_600_000, within=20.0)
    assert not isinstance(answer, Exception), answer


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
