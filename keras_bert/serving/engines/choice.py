"""Opens the engine of an export: the given one, or the fastest that passes its parity check."""

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.compiled import Compile
from keras_bert.serving.engines.spec import (
    ALL_PRECISIONS,
    ENGINES,
    EXTRAS,
    FLOAT_FILE,
    FOLDER,
    INT8_FILE,
    PRECISIONS,
    TENSORFLOW,
    NetworkSpec,
    check_precision,
)

AUTO = "auto"
CHOICES = (AUTO, *ENGINES)


@dataclass(frozen=True)
class EngineRequest:
    """The engine and precision that a user asks for.

    Attributes:
        engine: one of CHOICES; `auto` is the fastest installed engine that passes its check.
        precision: one of ALL_PRECISIONS; empty for the compute type of the export.

    Raises:
        InputError: a value is unknown, or the engine does not have the precision.
    """

    engine: str = AUTO
    precision: str = ""

    def __post_init__(self):
        for name, value, known in (
            ("engine", self.engine, CHOICES),
            ("precision", self.precision, ("", *ALL_PRECISIONS)),
        ):
            if value not in known:
                expected = ", ".join(filter(None, known))
                raise InputError(f"{name}={value!r}: expected one of {expected}")
        if self.precision and self.engine in PRECISIONS:
            check_precision(self.engine, self.precision)


ANY_ENGINE = EngineRequest()


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


def open_engine(
    folder: Path, loaded: Any, info: Mapping[str, Any] | None, request: EngineRequest
) -> Engine:
    """Opens the engine for an export.

    Args:
        folder: the version folder.
        loaded: its loaded SavedModel.
        info: the content of its export.json; None if there is none.
        request: the engine and precision.

    Raises:
        InputError: the given engine is not installed, lacks its file, has a damaged file, or does
            not give the SavedModel's answers.
    """
    info = info or {}
    compute_type = info.get("compute_type", "float32")
    precision = request.precision or compute_type
    saved = Engine(TENSORFLOW, compute_type, dict(loaded.signatures), loaded)
    if request.engine == TENSORFLOW:
        if precision != compute_type:
            raise InputError(
                f"{folder}: found a SavedModel in {compute_type}; expected {precision} for the "
                f"engine {TENSORFLOW}; export with --compute_type={precision}, or use another "
                "engine"
            )
        return saved
    if request.engine != AUTO:
        return _open(folder, loaded, info, request.engine, precision)
    return _fastest(folder, loaded, info, precision, saved)


def _fastest(
    folder: Path, loaded: Any, info: Mapping[str, Any], precision: str, saved: Engine
) -> Engine:
    engines = [saved] if saved.precision == precision else []
    for name, precisions in PRECISIONS.items():
        if precision not in precisions or "engines" not in info or not _is_installed(name):
            continue
        try:
            engines.append(_open(folder, loaded, info, name, precision))
        except InputError as error:
            logging.warning("Skipping the engine %s: %s", name, error)
    if not engines:
        raise InputError(
            f"{folder}: found no engine for {precision}; expected a SavedModel in {precision}, or "
            f"engines' files and an installed engine; export with --engines={','.join(PRECISIONS)}"
        )
    if len(engines) == 1:
        return engines[0]
    inputs = _example_inputs(info)
    seconds = [_seconds(engine, inputs) for engine in engines]
    for engine, taken in zip(engines, seconds, strict=True):
        logging.info("Engine %s: %.1f ms for the check's texts", engine.name, 1e3 * taken)
    return engines[seconds.index(min(seconds))]


def _seconds(engine: Engine, inputs: Mapping[str, Any]) -> float:
    """Returns the shortest time of a few calls of an engine."""
    from keras_bert.serving.engines.tuning import best_seconds

    return best_seconds(lambda: _answer(engine, inputs))


def _answer(engine: Engine, inputs: Mapping[str, Any]) -> None:
    from keras_bert.serving.engines.parity import SIGNATURE

    for value in engine.functions[SIGNATURE](**inputs).values():
        value.numpy()


def _example_inputs(info: Mapping[str, Any]) -> dict[str, Any]:
    from keras_bert.serving.engines.parity import example_inputs

    return example_inputs(_input_names(info))


def _input_names(info: Mapping[str, Any]) -> Sequence[str]:
    return list(info["signatures"]["serving_default"]["inputs"])


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _open(folder: Path, loaded: Any, info: Mapping[str, Any], name: str, precision: str) -> Engine:
    """Compiles the network, and checks that it gives the SavedModel's answers."""
    check_precision(name, precision)
    path = _file(folder, info, precision)
    if not _is_installed(name):
        raise InputError(
            f"engine={name}: the package {name} is not installed; install it with "
            f"pip install 'keras-bert-pipeline[{EXTRAS[name]}]'"
        )
    from keras_bert.serving.engines.functions import EngineFunction
    from keras_bert.serving.engines.network import EngineNetwork, available_cores
    from keras_bert.serving.engines.parity import difference
    from keras_bert.serving.engines.tuning import tune

    spec = NetworkSpec.from_json(info["engines"].get("network"), str(folder / "export.json"))
    plan = tune(
        _compiler(name, path, precision, spec), spec, info["max_seq_length"], available_cores()
    )
    network = EngineNetwork(plan, spec)
    found = difference(loaded, network, _input_names(info), precision)
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


def _file(folder: Path, info: Mapping[str, Any], precision: str) -> Path:
    """Returns the file with the network; raises an InputError if the export lacks it."""
    file = folder / FOLDER / (INT8_FILE if precision == "int8" else FLOAT_FILE)
    if "engines" not in info or not file.is_file():
        flags = "--engines=onnxruntime --int8" if precision == "int8" else "--engines=openvino"
        raise InputError(f"{file}: no such file; expected an export that was made with {flags}")
    return file
