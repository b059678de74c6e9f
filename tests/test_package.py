"""The package: public names imported at first use, data files, versions."""

import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import keras_bert

PACKAGE = Path(keras_bert.__file__).parent


def python(root, code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_imports_no_framework_and_takes_under_300_ms(root):
    code = (
        "import sys, time; start = time.process_time(); import keras_bert; "
        "print(time.process_time() - start); "
        "print(sorted({'tensorflow', 'keras', 'numpy', 'absl', 'jax'} & sys.modules.keys()))"
    )
    seconds, modules = python(root, code).splitlines()
    assert modules == "[]"
    assert float(seconds) < 0.3


@pytest.mark.slow
def test_using_the_api_prints_no_message_of_tensorflow(root, make_checkpoint, tmp_path):
    """Exports a tiny model from Python; TensorFlow's C++ code and its logger print nothing."""
    model = make_checkpoint(tmp_path / "model", "a")
    code = f"""
from keras_bert import BertEncoder, TextEmbedder
embedder = TextEmbedder.from_pretrained({str(model)!r})
embedder.export({str(tmp_path)!r} + "/export/1")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert not done.stdout
    assert not [line for line in done.stderr.splitlines() if "INFO" in line or "I0000" in line]


@pytest.mark.slow
def test_every_class_that_a_keras_file_may_contain_is_registered_by_importing_the_package(root):
    code = """
import importlib, pkgutil
import keras_bert
import keras

def registered():
    objects = keras.saving.get_custom_objects().values()
    return {each for each in objects if each.__module__.startswith("keras_bert")}

def subclasses(cls):
    return {each for sub in cls.__subclasses__() for each in ({sub} | subclasses(sub))}

before = registered()
for module in pkgutil.walk_packages(keras_bert.__path__, "keras_bert."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
bases = (
    keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric, keras.initializers.Initializer,
    keras.optimizers.Optimizer, keras.optimizers.schedules.LearningRateSchedule,
    keras.constraints.Constraint, keras.regularizers.Regularizer,
)
ours = {each for base in bases for each in subclasses(base)
        if each.__module__.startswith("keras_bert")}
concrete = {each for each in ours if not subclasses(each) & ours}
assert len(concrete) >= 20
print(sorted(each.__name__ for each in (concrete | registered()) - before))
"""
    assert python(root, code).splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_module_that_a_registered_class_needs_can_be_imported_first(root, monkeypatch, backend):
    """Keras imports the modules of registered classes, which import this one."""
    monkeypatch.setenv("KERAS_BACKEND", backend)
    code = """
from keras_bert.training.optimizers import AdamWeightDecay
import keras
print(keras.saving.get_registered_object("keras_bert>Lamb").__base__ is AdamWeightDecay)
"""
    assert python(root, code) == "True\n"


def test_no_import_circle(root):
    files = [file for top in ("keras_bert", "data_tools") for file in (root / top).rglob("*.py")]
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    names = [name.removesuffix(".__init__") for name in names]
    graph = {}
    for name, file in zip(names, files, strict=True):
        imports = [*_imports(ast.parse(file.read_text()).body)]
        graph[name] = {
            f"{each.module}.{alias.name}" if f"{each.module}.{alias.name}" in names else each.module
            for each in imports
            if isinstance(each, ast.ImportFrom)
            for alias in each.names
        }
        graph[name] |= {
            alias.name for each in imports if isinstance(each, ast.Import) for alias in each.names
        }
    graphlib.TopologicalSorter(graph).prepare()  # Raises an error that lists the circle.


def _imports(nodes):
    """Yields the import statements that run when a module with these statements is imported."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(ast.iter_child_nodes(node))


@pytest.mark.parametrize("name", keras_bert.__all__)
def test_public_name_is_imported_at_first_use(name):
    module = keras_bert._MODULES.get(name, "keras_bert")
    value = getattr(keras_bert, name)
    assert value is getattr(importlib.import_module(module), name)
    assert name in dir(keras_bert)


@pytest.mark.parametrize("name", ["TextClassifier", "BertTokenizer"])
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_gpus_are_hidden_from_tensorflow_if_another_backend_computes(monkeypatch, backend, name):
    hidden = []
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *devices: hidden.append(devices))
    monkeypatch.delitem(vars(keras_bert), name, raising=False)
    assert getattr(keras_bert, name)
    assert hidden == ([] if backend == "tensorflow" else [([], "GPU")])


def test_type_checkers_see_names_in_the_modules_that_define_them():
    tree = ast.parse(Path(keras_bert.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == keras_bert._MODULES
    assert {*seen, "__version__"} == {*keras_bert.__all__}
    assert (PACKAGE / "py.typed").is_file()


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="'keras_bert' has no attribute 'Nothing'"):
        _ = keras_bert.Nothing
    assert not hasattr(keras_bert, "Nothing")
