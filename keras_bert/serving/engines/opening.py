"""Opens an engine for an export: compiles the network, and checks its answers."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.compiled import Compile
from keras_bert.serving.engines.spec import (
    FLOAT_FILE,
    FOLDER,
    INT8_FILE,
    TENSORFLOW,
    NetworkSpec,
    check_precision,
    engine_flags,
)
from keras_bert.serving.extras import require_packages


@dataclass(frozen=True)
class Export:
    """A loaded export.

    Attributes:
        folder: the version folder.
        loaded: its loaded SavedModel.
        info: the content of its export.json; empty if there is none.
    """

    folder: Path
    loaded: Any
    info: Mapping[str, Any]

    @property
    def compute_type(self) -> str:
        """The dtype of the matrix products of the SavedModel."""
        return self.info.get("compute_type", "float32")

    @property
    def input_names(self) -> Sequence[str]:
        """The names of the inputs of the signature `serving_default`."""
        return list(self.info["signatures"]["serving_default"]["inputs"])

    @property
    def has_engines(self) -> bool:
        """Whether the export was made with engines besides TensorFlow."""
        return "engines" in self.info

    def file(self, precision: str) -> Path:
        """Returns the path of the engines' file for a precision, which may not exist."""
        return self.folder / FOLDER / (INT8_FILE if precision == "int8" else FLOAT_FILE)


@dataclass(frozen=True)
class Engine:
    """An engine that is ready to run an export.

    Attributes:
        name: one of ENGINES.
        precision: the precision of its matrix products.
        functions: {signature: function}, which are called like those of the SavedModel.
        model: the loaded SavedModel; kept because the functions hold its variables weakly.
        plan: a description of its threads and groups, for the log; empty for TensorFlow.
    """

    name: str
    precision: str
    functions: dict[str, Callable]
    model: Any
    plan: str = ""

    def __str__(self) -> str:
        """Describes the engine for the log."""
        return ", ".join(filter(None, [self.name, self.precision, self.plan]))


def saved_model_engine(export: Export) -> Engine:
    """Returns the engine TensorFlow, which runs the signatures of the SavedModel."""
    functions = dict(export.loaded.signatures)
    return Engine(TENSORFLOW, export.compute_type, functions, export.loaded)


def open_network_engine(export: Export, name: str, precision: str) -> Engine:
    """Opens an engine other than TensorFlow.

    Raises:
        InputError: the engine lacks the precision or its file, is not installed, fails for any
            reason, or does not give the answers of the SavedModel.
    """
    check_precision(name, precision)
    path = export.file(precision)
    if not export.has_engines or not path.is_file():
        raise InputError(
            f"{path}: no such file; expected an export that was made with "
            f"{engine_flags(precision, name)}"
        )
    require_packages([name], f"engine={name}")
    try:
        return _open_file(export, path, name, precision)
    except InputError:
        raise
    # Importing, compiling and running a network can raise any exception.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{path}: {name} in {precision} failed with {reason:.300}; expected a network that it "
            f"can run; use --engine={TENSORFLOW}, or export the model again"
        ) from error


def _open_file(export: Export, path: Path, name: str, precision: str) -> Engine:
    # Imported here, because importing them takes time.
    from keras_bert.serving.engines.functions import EngineFunction
    from keras_bert.serving.engines.network import EngineNetwork, available_cores
    from keras_bert.serving.engines.parity import Check, difference
    from keras_bert.serving.engines.tuning import tune
    from keras_bert.serving.saved_model import INFO

    loaded, info = export.loaded, export.info
    spec = NetworkSpec.from_json(info["engines"].get("network"), str(export.folder / INFO))
    compile_network = _compiler(name, path, precision, spec)
    logging.info("Measuring %s in %s for %s: takes a few seconds", name, precision, export.folder)
    plan = tune(compile_network, spec, info["max_seq_length"], available_cores())
    network = EngineNetwork(plan, spec)
    check = Check(export.input_names, precision, export.compute_type)
    found = difference(loaded, network, check)
    if found is not None:
        raise InputError(
            f"{path}: the answers of {name} in {precision} are not those of the SavedModel: "
            f"{found}; use --engine={TENSORFLOW}, or another precision"
        )
    functions = {
        signature: EngineFunction(loaded, signature, network) for signature in loaded.signatures
    }
    text = f"groups of {plan.group_rows} rows, {plan.several.parallel} at a time"
    return Engine(name, precision, functions, loaded, text)


def _compiler(name: str, path: Path, precision: str, spec: NetworkSpec) -> Compile:
    if name == "openvino":
        from keras_bert.serving.engines.openvino_network import OpenVINONetwork

        return functools.partial(OpenVINONetwork, path, list(spec.per), precision)
    from keras_bert.serving.engines.onnxruntime_network import OnnxRuntimeNetwork

    return functools.partial(OnnxRuntimeNetwork, path)
