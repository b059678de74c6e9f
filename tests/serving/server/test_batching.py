"""Requests that come together run together, and each gets its own rows or its own error."""

import asyncio
import threading

import numpy as np
import pytest

from keras_bert.serving.server.batching import Batcher
from keras_bert.serving.server.errors import RestError
from keras_bert.serving.server.metrics import Metrics


class FakeVersion:
    """Doubles numbers; counts letters; refuses 13; waits while `gate` is closed."""

    # "total" has one number for all rows, whatever its signature says.
    batched = frozenset(["double", "letters", "total"])

    def __init__(self):
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = inputs["x"]
        self.batches.append(x.ravel().tolist())
        self.gate.wait()
        if signature == "letters":  # As many as the longest has, padded as a tagger pads.
            widest = max(map(len, x))
            texts = [[*(bytes([c]) for c in text), *[b""] * (widest - len(text))] for text in x]
            letters = np.array(texts, object).reshape(len(x), widest)
            places = np.where(letters.astype(bool), np.arange(widest), -1)
            return {"letters": letters, "places": places, "scores": (places >= 0) * 0.5}
        if 13 in x:
            raise RestError(400, "unlucky")
        if signature == "total":
            return {"y": x.sum()}
        return {"y": 2 * x}


def make_batcher(**settings) -> Batcher:
    options = {"max_rows": 64, "max_request_rows": 100, "timeout": 0.0, "in_flight": 1}
    return Batcher(metrics=Metrics(), **(options | {"max_waiting": 1000} | settings))


def run_all(version, requests, signature="double", within=None, **settings):
    """Sends requests at once; returns their answers or errors in order."""

    async def main():
        batcher = make_batcher(**settings)
        calls = [batcher.run(version, signature, {"x": np.array(request)}) for request in requests]
        try:
            async with asyncio.timeout(within):
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
    run_all(version, [[[n]] for n in range(5)], max_rows=2)
    assert version.batches == [[0, 1], [2, 3], [4]]


def test_a_long_request_is_cut_and_others_come_between():
    version = FakeVersion()
    long = [[n] for n in range(10, 13)] + [[14]] * 2
    answers = run_all(version, [long, [[1]], [[2]]], max_rows=2)
    assert answers[0]["y"].tolist() == [[20], [22], [24], [28], [28]]
    assert version.batches == [[10, 11], [1, 2], [12, 14], [14]]
    assert run_all(version, [[[1]] * 100, [[1]] * 101])[1].message == (
        "The request has 101 rows, expected up to 100"
    )


def test_slices_of_unequal_width_are_padded():
    texts = [b"a", b"bc", b"", b"def"]
    whole, cut = (
        run_all(FakeVersion(), [np.array(texts, object)], "letters", max_rows=rows)[0]
        for rows in (4, 2)
    )
    assert whole.keys() == cut.keys()
    for name, array in whole.items():
        assert cut[name].tolist() == array.tolist()
        assert cut[name].dtype == array.dtype


def test_a_long_text_does_not_widen_the_answers_of_others():
    version = FakeVersion()
    requests = [[text] for text in (b"ab", b"x" * 100_000, b"c")]
    answers = run_all(version, [np.array(texts, object) for texts in requests], "letters")
    assert [answer["letters"].shape for answer in answers] == [(1, 2), (1, 100_000), (1, 2)]
    assert [len(batch) for batch in version.batches] == [2, 1]


def test_no_more_of_a_request_is_run_once_nobody_waits():
    version = FakeVersion()

    async def main():
        batcher = make_batcher(max_rows=1, max_waiting=1)
        version.gate.clear()
        call = asyncio.create_task(batcher.run(version, "double", {"x": np.array([[1]] * 50)}))
        while not version.batches:
            await asyncio.sleep(0.01)
        call.cancel()
        version.gate.set()
        answer = await batcher.run(version, "double", {"x": np.array([[2]])})
        batcher.close()
        return answer["y"].tolist()

    assert asyncio.run(main()) == [[4]]
    assert version.batches == [[1], [2]]


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


def test_a_bad_request_costs_few_runs():
    version = FakeVersion()
    answers = run_all(version, [[[13 if n == 40 else n % 13]] for n in range(64)])
    assert [n for n, answer in enumerate(answers) if isinstance(answer, RestError)] == [40]
    assert len(version.batches) == 1 + 2 * 6


def test_inputs_of_unequal_rows():
    version = FakeVersion()

    async def main():
        batcher = make_batcher()
        inputs = {"text": np.array([b"a"], object), "text_pair": np.array([], object)}
        await batcher.run(version, "letters", inputs)

    with pytest.raises(RestError, match="equal 0th-dimension size: text has 1, text_pair has 0"):
        asyncio.run(main())


@pytest.mark.parametrize("signature", ["fixed", "total"])
def test_signatures_whose_rows_are_not_a_batch(signature):
    answers = run_all(FakeVersion(), [[1, 2], [3, 4]], signature)
    assert [answer["y"].tolist() for answer in answers] == (
        [[2, 4], [6, 8]] if signature == "fixed" else [3, 7]
    )


def test_what_comes_while_a_batch_runs_goes_together():
    version = FakeVersion()

    async def main():
        batcher = make_batcher(max_waiting=2)
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
        with pytest.raises(RestError, match="queue to which this task was submitted is full"):
            batcher.require_room()
        # One that is given up before its turn is not run, and leaves its place to another.
        calls[2].cancel()
        await asyncio.sleep(0.01)
        one = batcher.run(version, "double", {"x": np.array([[5]])})
        calls.append(asyncio.create_task(one))
        await asyncio.sleep(0.01)
        version.gate.set()
        answers = await asyncio.gather(*calls[:2], calls[4])
        batcher.close()
        return [answer["y"].tolist() for answer in answers]

    assert asyncio.run(main()) == [[[2]], [[4]], [[10]]]
    assert version.batches == [[1], [2, 5]]


def test_a_timeout_gathers_a_batch():
    version = FakeVersion()

    async def main():
        batcher = make_batcher(max_rows=3, timeout=0.2, in_flight=4)

        async def later(n: int):
            await asyncio.sleep(0.01 * n)
            return await batcher.run(version, "double", {"x": np.array([[n]])})

        await asyncio.gather(*(later(n) for n in range(5)))
        batcher.close()

    asyncio.run(main())
    # Three fill a batch; two wait for more until their time is over.
    assert version.batches == [[0, 1, 2], [3, 4]]


def test_what_is_not_joined_waits_for_no_others():
    version = FakeVersion()
    texts = np.array([b"x" * 100_000], object)
    for inputs, signature in ((texts, "letters"), ([[1]], "fixed")):
        # Its turn would come in an hour.
        (answer,) = run_all(version, [inputs], signature, timeout=3600.0, within=20.0)
        assert not isinstance(answer, Exception), answer
    assert len(version.batches) == 2
