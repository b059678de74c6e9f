"""Several workers: what TF_CONFIG says, and what one process alone can tell of them."""

import json
import socket

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import EndedEarly, InputError
from keras_bert.training.cluster import (
    Cluster,
    all_sum,
    check_agreement,
    join,
    read_cluster,
    share_of,
)

ONE = tf.distribute.get_strategy()


def environment(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_workers_are_those_of_tf_config():
    cluster = {"worker": ["a:1", "b:2", "c:3"]}
    assert read_cluster(environment(cluster, index=2)) == Cluster(("a:1", "b:2", "c:3"), 2)


def test_a_chief_is_the_first_worker():
    cluster = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    assert read_cluster(environment(cluster, "chief")) == Cluster(("a:1", "b:2", "c:3"), 0)
    assert read_cluster(environment(cluster, "worker", 1)) == Cluster(("a:1", "b:2", "c:3"), 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, r"needs TF_CONFIG in the environment: \{\"cluster\""),
        ({"TF_CONFIG": "{"}, r"TF_CONFIG='\{' cannot be read \(JSONDecodeError"),
        ({"TF_CONFIG": "[]"}, r"cannot be read \(TypeError"),
        ({"TF_CONFIG": '{"cluster": {}}'}, r"cannot be read \(KeyError: 'task'"),
        (environment({"worker": ["a:1"], "ps": ["b:1"]}), r"jobs \['ps'\]; expected `worker`"),
        (environment({"worker": ["a:1"]}, index=1), r"\"index\": 1\} is not in the cluster"),
        (environment({"worker": ["a:1"]}, "evaluator"), r"\"evaluator\".* is not in the cluster"),
        (environment({"worker": ["a:1"]}, index="0"), r"is not in the cluster"),
        (environment({"worker": ["a"]}), r"'a' is no address; expected HOST:PORT"),
        (environment({"worker": ["a:99999"]}), r"'a:99999' is no address"),
        (environment({"worker": ["a:1", "a:1"]}), r"an address comes twice"),
    ],
)
def test_a_bad_tf_config_is_one_line(variables, message):
    with pytest.raises(InputError, match=message):
        read_cluster(variables)


def test_a_taken_port_is_one_line():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(
            InputError, match=f"cannot listen on the port of {address}, .*: Address already in use"
        ):
            join(Cluster((address, "localhost:1"), 0), timeout=1)


def test_a_worker_that_never_joins_is_named():
    with socket.socket() as free:
        free.bind(("", 0))
        own = f"localhost:{free.getsockname()[1]}"
    message = r"worker 0 of 2 waited 0 s \(--worker_timeout\); not there: localhost:1"
    with pytest.raises(EndedEarly, match=message):
        join(Cluster((own, "localhost:1"), 0), timeout=0)


def test_one_process_is_a_cluster_of_one(mirrored):
    for strategy in (ONE, mirrored):
        assert share_of(strategy) == (0, 1)
        assert all_sum(strategy)(np.array([2.0])) == 2.0
        check_agreement(strategy, {"a": 1})
