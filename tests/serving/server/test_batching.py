"""Requests that come together run together, and each gets its own rows or its own error."""

import asyncio
import threading

import numpy as np
import pytest

from keras_bert.serving.server.batching import Batcher
from keras_bert.serving.server.json_text import RestError
from keras_bert.serving.server.metrics import Metrics
from keras_bert.serving.server.protocol import Input


class FakeVersion:
    """Doubles numbers; refuses 13; waits while `gate` is closed."""

    signatures = {  # noqa: RUF012
        "double": {"x": Input("int64", (None, None))},
        "fixed": {"x": Input("int64", (2,))},
        "total": {"x": Input("int64", (None,))},
    }

    def __init__(self):
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.batches.append(inputs["x"].ravel().tolist())
        self.gate.wait()
        if 13 in inputs["x"]:
            raise RestError(400, "unlucky")
        if signature == "total":
            return {"y": inputs["x"].sum()}
        return {"y": 2 * inputs["x"]}


def run_all(version, requests, signature="double", **settings):
    """Sends requests at once; returns their answers or errors in order."""

    async def main():
        options = {"max_rows": 64, "timeout": 0.0, "in_flight": 1, "max_waiting": 1000} | settings
        batcher = Batcher(metrics=Metrics(), **options)
        calls = [batcher.run(version, signature, {"x": np.array(request)}) for request in requests]
        try:
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(main())


def test_requests_at_once_are_one_batch():
    version = FakeVersion()
    answers = run_all(version, [[[1]], [[2], [3]], [[4]]])
    assert [answer["y"].tolist() for answer in answers] == [[[2]], [[4], [6]], [[8]]]
    assert version.batches == [[1, 2, 3, 4]]


def test_no_more_rows_than_allowed():
    version = FakeVersion()
    run_all(version, [[[n]] for n in range(5)] + [[[5]] * 3], max_rows=2)
    assert version.batches == [[0, 1], [2, 3], [4], [5, 5, 5]]


def test_other_inner_shapes_are_other_batches():
    version = FakeVersion()
    answers = run_all(version, [[[1]], [[2, 3]], [[4]]])
    assert version.batches == [[1, 4], [2, 3]]
    assert answers[1]["y"].tolist() == [[4, 6]]


def test_a_bad_request_fails_alone():
    answers = run_all(FakeVersion(), [[[1]], [[13]], [[2]]])
    assert answers[0]["y"].tolist() == [[2]]
    assert isinstance(answers[1], RestError)
    assert answers[2]["y"].tolist() == [[4]]


@pytest.mark.parametrize("signature", ["fixed", "total"])
def test_signatures_whose_rows_are_not_a_batch(signature):
    answers = run_all(FakeVersion(), [[1, 2], [3, 4]], signature)
    assert [answer["y"].tolist() for answer in answers] == (
        [[2, 4], [6, 8]] if signature == "fixed" else [3, 7]
    )


def test_what_comes_while_a_batch_runs_goes_together():
    version = FakeVersion()

    async def main():
        batcher = Batcher(64, 0.0, 1, 2, Metrics())
        version.gate.clear()
        calls = [asyncio.create_task(batcher.run(version, "double", {"x": np.array([[1]])}))]
        while not version.batches:
            await asyncio.sleep(0.01)
        for n in (2, 3, 4):
            one = batcher.run(version, "double", {"x": np.array([[n]])})
            calls.append(asyncio.create_task(one))
        await asyncio.sleep(0.01)
        # Two may wait.
        assert calls[3].exception().status == 503
        # One that is given up before its turn is not run.
        calls[2].cancel()
        await asyncio.sleep(0)
        version.gate.set()
        answers = await asyncio.gather(*calls[:2])
        batcher.close()
        return [answer["y"].tolist() for answer in answers]

    assert asyncio.run(main()) == [[[2]], [[4]]]
    assert version.batches == [[1], [2]]


def test_a_timeout_gathers_a_batch():
    version = FakeVersion()

    async def main():
        batcher = Batcher(3, 0.2, 4, 100, Metrics())

        async def later(n: int):
            await asyncio.sleep(0.01 * n)
            return await batcher.run(version, "double", {"x": np.array([[n]])})

        await asyncio.gather(*(later(n) for n in range(5)))
        batcher.close()

    asyncio.run(main())
    # Three fill a batch; two wait for more until their time is over.
    assert version.batches == [[0, 1, 2], [3, 4]]
