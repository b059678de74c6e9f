"""Several workers: reading TF_CONFIG, and behavior that one process can check alone."""

import json
import os
import socket

import pytest
import tensorflow as tf

from keras_bert.errors import EndedEarly, InputError, InUse
from keras_bert.training.cluster import (
    Cluster,
    _convert_lost_worker_errors,
    _sum_of_firsts,
    join,
    read_cluster,
)

ONE = tf.distribute.get_strategy()


def environment(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_chief_is_the_first_worker():
    cluster = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    assert read_cluster(environment(cluster, "chief")) == Cluster(("a:1", "b:2", "c:3"), 0)
    assert read_cluster(environment(cluster, "worker", 1)) == Cluster(("a:1", "b:2", "c:3"), 2)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        environment({"worker": ["a:1"], "ps": ["b:1"]}),
        environment({"worker": ["a:1"]}, index=1),
        environment({"worker": ["a:1"]}, "evaluator"),
        environment({"worker": ["a\0b:2222"]}),
        environment({"worker": ["a:1", "a:1"]}),
    ],
)
def test_invalid_tf_config_raises_an_error(variables):
    with pytest.raises(InputError, match=r"TF_CONFIG=.*expects \{\"cluster\": \{\"worker\""):
        read_cluster(variables)


def test_workers_are_read_from_the_variables_of_slurm(monkeypatch, tmp_path):
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node9; echo node10; echo node11\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    variables = {
        "SLURM_JOB_ID": "40007",
        "SLURM_PROCID": "2",
        "SLURM_STEP_NODELIST": "node[9-11]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    }
    workers = "node9:20007", "node9:20008", "node10:20007", "node10:20008", "node11:20007"
    assert read_cluster(variables) == Cluster(workers, 2)


def test_port_in_use_raises_an_error():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            InUse, match=f"cannot listen on its port {port}: Address already in use"
        ):
            join(Cluster((f"localhost:{port}", "localhost:1"), 0), timeout=1)


def test_only_one_device_of_each_worker_contributes_to_a_sum(mirrored):
    """Summing 0.1 over three devices gives a value that dividing by 3 does not restore."""
    value = tf.constant([0.1])
    assert _sum_of_firsts(mirrored, 2)(value).numpy() == value.numpy()


OWN = "{{node Cast}} /job:worker/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize(
    ("error", "message", "lost"),
    [
        (tf.errors.InternalError, f"{OWN} aborted by: /task:1 heartbeat timeout", "worker 1"),
        (tf.errors.UnavailableError, "task:1 called task:2: timed out", "another worker"),
        (tf.errors.CancelledError, "Socket closed", "another worker"),
    ],
)
def test_errors_about_another_worker_report_the_lost_connection(error, message, lost):
    with (
        pytest.raises(EndedEarly, match=f"^lost the connection to {lost}$"),
        _convert_lost_worker_errors(0),
    ):
        raise error(None, None, message)


def test_error_of_this_worker_is_not_changed():
    error = tf.errors.InternalError(None, None, f"{OWN} could not create a primitive")
    with pytest.raises(tf.errors.InternalError), _convert_lost_worker_errors(0):
        raise error
