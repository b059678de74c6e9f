"""Exported models use only ops that TensorFlow Serving has, and run in C++ as it runs them.

The TensorFlow Serving program itself is not run here. It loads a SavedModel with the C++ code that
TensorFlow's C API wraps; c_api.py does so in a process without Python's TensorFlow. It runs a
session, as these tests do.

The ops of TensorFlow Serving 2.18, 2.19 and 2.20 are known from golden/ops_2_18.binpb.gz. It has
the definitions of all ops in the C++ library of TensorFlow 2.18.1, and of those in the three
libraries of tensorflow-text that our tokenizer uses, as golden/make_ops_golden.py read them from
the released packages. TensorFlow never removes ops or attributes, so those of 2.18 exist in 2.19
and 2.20 too. TensorFlow Serving links `ops_lib` of tensorflow-text: version 2.12.1 in its releases
2.18.0 to 2.19.1, and version 2.20.0 in 2.20.0 (tensorflow_serving/workspace.bzl). Both have the
three libraries and define these ops as 2.18 does. Other ops of tensorflow-text, such as the
trimmers that 2.12 lacks, are not in the golden file.

The tests are in one file because they share the exports, which take most of the time.
"""

import functools
import gzip
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, op_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

pytestmark = pytest.mark.slow
TASKS = ["pair", "multi_label", "embedding", "fill_mask", "ner", "question_answering"]
# All ops of tensorflow-text that we use: Serving must link each of them.
TEXT_OPS = {
    "FastBertNormalize",
    "FastWordpieceTokenizeWithOffsets",
    "TFText>WhitespaceTokenizeWithOffsetsV2",
}
# Ops that call Python, and tables, which a session must initialize first.
FORBIDDEN = ("PyFunc", "EagerPyFunc", "HashTable", "LookupTable", "InitializeTable")


@pytest.fixture(autouse=True)
def graph_optimization(export):
    """Optimizes graphs as TensorFlow Serving does; this affects where bfloat16 is rounded.

    The exports are made before, because optimization takes most of their time.
    """
    for task in TASKS:
        export(task)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(scope="module")
def export(export):  # Without engines, of which TensorFlow Serving has none.
    return functools.partial(export, for_engines=False)


def test_c_api_loads_every_export(export, root):
    site_packages = Path(importlib.util.find_spec("tensorflow").origin).parent.parent
    folders = [str(export(task).folder) for task in TASKS]
    process = subprocess.run(
        [sys.executable, str(root / "tests" / "export" / "c_api.py"), str(site_packages), *folders],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.parametrize("task", TASKS)
def test_outputs_of_a_session_match_python(task: str, export):
    exported = export(task)
    assert {"serving_default", "token_ids"} <= exported.requests.keys()
    answers = {name: exported.call(name, each) for name, each in exported.requests.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(exported.folder))

        def run(name: str, request: dict) -> dict[str, np.ndarray]:
            signature = loaded.signature_def[name]
            tensors = {key: output.name for key, output in signature.outputs.items()}
            feed = {signature.inputs[key].name: value for key, value in request.items()}
            return session.run(tensors, feed)

        for name, request in exported.requests.items():
            outputs, expected = run(name, request), answers[name]
            assert outputs.keys() == expected.keys()
            for key, value in expected.items():
                where = f"{name} {key}"
                assert outputs[key].dtype == value.dtype, where
                assert len(value) == len(next(iter(request.values()))), where  # One row per text.
                if value.dtype == np.float32:
                    np.testing.assert_allclose(outputs[key], value, 1e-4, 1e-5, err_msg=where)
                else:
                    np.testing.assert_array_equal(outputs[key], value, where)
        request = exported.requests["token_ids"]
        request = request | {"input_ids": np.full_like(request["input_ids"], 10**6)}
        message = r"input_ids: expected values from 0 to \d+, got\W+1000000\b"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run("token_ids", request)


@pytest.fixture(scope="module")
def old_ops(root) -> dict[str, op_def_pb2.OpDef]:
    """Returns the ops of TensorFlow 2.18 by name."""
    content = gzip.decompress((root / "tests" / "golden" / "ops_2_18.binpb.gz").read_bytes())
    return {op.name: op for op in op_def_pb2.OpList.FromString(content).op}


def read_graph(folder: Path) -> meta_graph_pb2.MetaGraphDef:
    """Reads the graph of an export that a server loads."""
    content = (folder / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]


def all_nodes(graph: meta_graph_pb2.MetaGraphDef) -> Iterator[node_def_pb2.NodeDef]:
    """Yields the nodes of a graph and of all its functions, except function calls."""
    library = graph.graph_def.library
    functions = {function.signature.name for function in library.function}
    for nodes in (graph.graph_def.node, *(function.node_def for function in library.function)):
        yield from (node for node in nodes if node.op not in functions)


def is_allowed(value: attr_value_pb2.AttrValue, attr: op_def_pb2.OpDef.AttrDef) -> bool:
    """Returns whether a definition allows a value; without a list, all values are allowed."""
    types, strings = list(attr.allowed_values.list.type), list(attr.allowed_values.list.s)
    if value.WhichOneof("value") == "type" and types:
        return value.type in types
    return not strings or value.s in strings


@pytest.mark.parametrize("task", TASKS)
def test_every_op_and_attribute_exists_in_tensorflow_2_18(task: str, export, old_ops: dict):
    graph = read_graph(export(task).folder)
    assert graph.meta_info_def.stripped_default_attrs  # An older release may lack such attributes.
    nodes = list(all_nodes(graph))
    ops = {node.op for node in nodes}
    assert ops - old_ops.keys() == set()
    assert ops - set(dir(tf.raw_ops)) <= TEXT_OPS
    assert not [op for op in ops if op.startswith(FORBIDDEN)]
    for node in nodes:
        attrs = {attr.name: attr for attr in old_ops[node.op].attr}
        for name, value in node.attr.items():
            if not name.startswith("_"):  # Skips annotations.
                assert name in attrs, f"{node.op} has no {name} in 2.18"
                assert is_allowed(value, attrs[name]), f"{node.op} takes no {name}={value} in 2.18"


@pytest.mark.parametrize("task", TASKS)
def test_warm_up_requests_call_every_signature(task: str, export, read_warmup: Callable):
    exported = export(task)
    requests = read_warmup(exported.folder)
    assert [each.model_spec.signature_name for each in requests] == list(
        exported.info["signatures"]
    )
    assert {each.model_spec.name for each in requests} == {exported.folder.parent.name}
    # No version is set, because the folder may be copied to another number.
    assert not any(each.model_spec.WhichOneof("version_choice") for each in requests)
    for each in requests:
        inputs = {name: tf.make_ndarray(value) for name, value in each.inputs.items()}
        answers = exported.call(each.model_spec.signature_name, inputs)
        assert {len(value) for value in answers.values()} == {1}
