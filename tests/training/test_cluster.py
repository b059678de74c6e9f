"""Several workers: reading TF_CONFIG, and behavior that one process can check alone."""

import json
import socket

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.training.cluster import (
    Cluster,
    _convert_lost_worker_errors,
    _sum_of_firsts,
    all_sum,
    check_agreement,
    join,
    read_cluster,
    share_of,
)
from keras_bert.training.rendezvous import reserved_address

ONE = tf.distribute.get_strategy()


def environment(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_workers_are_read_from_tf_config():
    cluster = {"worker": ["a:1", "b:2", "c:3"]}
    assert read_cluster(environment(cluster, index=2)) == Cluster(("a:1", "b:2", "c:3"), 2)


def test_chief_is_the_first_worker():
    cluster = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    assert read_cluster(environment(cluster, "chief")) == Cluster(("a:1", "b:2", "c:3"), 0)
    assert read_cluster(environment(cluster, "worker", 1)) == Cluster(("a:1", "b:2", "c:3"), 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, r"TF_CONFIG is not set; multi_worker_mirrored expects \{\"cluster\""),
        ({"TF_CONFIG": "{"}, r"TF_CONFIG='\{' cannot be read \(JSONDecodeError"),
        ({"TF_CONFIG": "[]"}, r"cannot be read \(TypeError"),
        ({"TF_CONFIG": '{"cluster": {}}'}, r"cannot be read \(KeyError: 'task'"),
        (environment({"worker": ["a:1"], "ps": ["b:1"]}), r"jobs \['ps'\]; expected `worker`"),
        (environment({"worker": ["a:1"]}, index=1), r"\"index\": 1\} is not in the cluster"),
        (environment({"worker": ["a:1"]}, "evaluator"), r"\"evaluator\".* is not in the cluster"),
        (environment({"worker": ["a:1"]}, index="0"), r"is not in the cluster"),
        (environment({"worker": ["a"]}), r"'a' is not an address; expected HOST:PORT"),
        (environment({"worker": ["a:99999"]}), r"'a:99999' is not an address"),
        (environment({"worker": ["a..b:2222"]}), r"'a\.\.b:2222' is not an address"),
        (environment({"worker": [f"{'a' * 64}:2222"]}), r"'aaa.*:2222' is not an address"),
        (environment({"worker": ["a\0b:2222"]}), r"b:2222' is not an address"),
        (environment({"worker": ["a:" + "9" * 5000]}), r"99' is not an address"),
        (environment({"worker": ["a:1", "a:1"]}), r"duplicate address"),
    ],
)
def test_invalid_tf_config_raises_an_error(variables, message):
    with pytest.raises(InputError, match=message):
        read_cluster(variables)


def test_port_in_use_raises_an_error():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(
            InputError, match=f"cannot listen on the port of {address}, .*: Address already in use"
        ):
            join(Cluster((address, "localhost:1"), 0), timeout=1)


def test_worker_that_never_joins_is_named():
    message = r"worker 0 of 2 waited 0 s \(--worker_timeout\); not connected: localhost:1"
    with reserved_address() as own, pytest.raises(EndedEarly, match=message):
        join(Cluster((own, "localhost:1"), 0), timeout=0)


def test_one_process_is_a_cluster_of_one(mirrored):
    for strategy in (ONE, mirrored):
        assert share_of(strategy) == (0, 1)
        assert all_sum(strategy)(np.array([2.0])) == 2.0
        check_agreement(strategy, {"a": 1})


def test_only_one_device_of_each_worker_contributes_to_a_sum(mirrored):
    """Summing 0.1 over three devices gives a value that dividing by 3 does not restore."""
    value = tf.constant([0.1])
    assert _sum_of_firsts(mirrored, 2)(value).numpy() == value.numpy()


def called(*workers):
    """Returns TensorFlow's message about a failed call that was passed on from worker to worker."""
    target = "Additional GRPC error information from remote target /job:worker/replica:0/task:{}"
    lines = [
        f"{target.format(n)} while calling /tensorflow.WorkerService/RecvBuf:" for n in workers
    ]
    return "\n".join(["Collective ops is aborted by: recvmsg:Connection timed out", *lines])


OWN = "{{node Cast}} /job:worker/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize(
    ("error", "who"),
    [
        (
            tf.errors.UnavailableError,
            "/job:worker/replica:0/task:1 unavailable: Connection refused",
        ),
        (tf.errors.InternalError, f"{OWN} Collective ops is aborted by: /task:1 heartbeat timeout"),
        (tf.errors.CancelledError, "Socket closed"),
    ],
)
def test_errors_about_another_worker_report_the_lost_connection(error, who):
    with (
        pytest.raises(EndedEarly, match=r"^lost the connection to worker 1$"),
        _convert_lost_worker_errors(2, 0),
    ):
        raise error(None, None, who)


@pytest.mark.parametrize(
    ("who", "named"),
    [
        ("Collective ops is aborted by: /task:2 heartbeat timeout", "worker 2"),
        (
            "Collective ops is aborted by: Deadline Exceeded\n\n"
            "RPC: /tensorflow.CoordinationService/Heartbeat",
            "worker 0",
        ),
        ("Socket closed", "another worker"),
        (called(2), "worker 2"),
        # This worker called worker 0, which had called worker 2.
        (called(2, 0), "worker 2, worker 0"),
        # Worker 0 had called worker 2, which had called this worker.
        (called(1, 2, 0), "worker 2"),
        (called(0, 2, 0), "worker 0, worker 2"),
    ],
)
def test_lost_worker_of_several_is_named_if_the_error_identifies_it(who, named):
    lost, *caller = named.split(", ")
    line = f"lost the connection to {lost}"
    with (
        pytest.raises(EndedEarly, match=f"^{' '.join([*caller, line])}$"),
        _convert_lost_worker_errors(3, 1),
    ):
        raise tf.errors.UnavailableError(None, None, who)


@pytest.mark.parametrize(
    "error", [tf.errors.InternalError, tf.errors.FailedPreconditionError, tf.errors.AbortedError]
)
def test_errors_of_this_worker_are_not_changed(error):
    with pytest.raises(error), _convert_lost_worker_errors(2, 0):
        raise error(None, None, f"{OWN} could not create a primitive")
