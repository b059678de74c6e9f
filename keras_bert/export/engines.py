"""Names the engines and their precisions, and opens the engine that runs an export.

Importing this module imports neither TensorFlow nor an engine.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keras_bert.errors import InputError
from keras_bert.export.version_folders import INFO

TENSORFLOW = "tensorflow"
COMPUTE_TYPES = ("float32", "bfloat16")  # The precisions of a SavedModel.
# Engine besides TensorFlow -> the precisions it has.
PRECISIONS = {
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16"),
}
INT8_ENGINES = tuple(name for name, precisions in PRECISIONS.items() if "int8" in precisions)
ENGINES = (TENSORFLOW, *PRECISIONS)
ALL_PRECISIONS = (*COMPUTE_TYPES, "int8")

# The folder, in a version's folder, of the engines' files: the network in ONNX's format.
FOLDER = "engines"
FLOAT_FILE = "network.onnx"
INT8_FILE = "network_int8.onnx"

# Package -> the extra in setup.cfg that installs it.
_EXTRAS = {"onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino"}


@dataclass(frozen=True)
class NetworkSpec:
    """Describes the outputs of the network of a task.

    Attributes:
        per: {output: `row`, `token` or `mask`} in the order of the outputs; whether the output has
            a value for each row, each token or each [MASK].
        top_k: number of tokens returned for each mask; 0 without masks.
        mask_token_id: the id of [MASK]; -1 without masks.
        pooled: whether the output `vectors` contains the pooled output.
    """

    per: Mapping[str, str]
    top_k: int = 0
    mask_token_id: int = -1
    pooled: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the content for export.json; `per` as pairs, since JSON objects have no order."""
        return {**asdict(self), "per": [list(pair) for pair in self.per.items()]}

    @classmethod
    def from_json(cls, content: Any, where: str) -> "NetworkSpec":
        """Creates the object from export.json; `where` names the file in errors.

        Raises:
            InputError: the content is not what `to_json` returns.
        """
        try:
            spec = cls(**{**content, "per": dict(content["per"])})
            kinds = set(spec.per.values())
            valid = bool(kinds) and kinds <= {"row", "token", "mask"}
            if "mask" in kinds:
                valid = valid and spec.mask_token_id >= 0 and spec.top_k > 0
        except (TypeError, ValueError, KeyError):
            valid = False
        if not valid:
            raise InputError(
                f"{where}: found {content!r:.200} as the description of the network; expected the "
                "content that the export wrote; export the model again"
            )
        return spec


@dataclass(frozen=True)
class EngineRequest:
    """The engine and precision that a user asks for.

    Attributes:
        engine: one of ENGINES; empty for the engine that the export was made for.
        precision: one of ALL_PRECISIONS; empty for the compute type of the export.

    Raises:
        InputError: a value is unknown, or the engine does not have the precision.
    """

    engine: str = ""
    precision: str = ""

    def __post_init__(self):
        for name, value, values in (
            ("engine", self.engine, ENGINES),
            ("precision", self.precision, ALL_PRECISIONS),
        ):
            if value and value not in values:
                raise InputError(f"{name}={value!r}: expected one of {', '.join(values)}")
        if self.precision and self.engine:
            _check_precision(self.engine, self.precision)


ANY_ENGINE = EngineRequest()


@dataclass(frozen=True)
class Engine:
    """An engine that is ready to run an export.

    Attributes:
        name: one of ENGINES.
        precision: the precision of its matrix products.
        functions: {signature: function}, which are called like those of the SavedModel.
        model: the loaded SavedModel; kept because the functions hold its variables weakly.
    """

    name: str
    precision: str
    functions: dict[str, Callable]
    model: Any


def open_engine(
    folder: Path, loaded: Any, info: Mapping[str, Any] | None, request: EngineRequest
) -> Engine:
    """Opens the engine for an export.

    Args:
        folder: the version folder.
        loaded: its loaded SavedModel.
        info: the content of its export.json; None if there is none.
        request: the engine and precision. Without an engine, the first engine of the export that
            has the precision is used, and TensorFlow if there is none.

    Raises:
        InputError: the engine lacks the precision or its file, is not installed, fails for any
            reason, or does not give the SavedModel's answers.
    """
    info = info or {}
    compute_type = info.get("compute_type", "float32")
    precision = request.precision or compute_type
    names = info.get("engines", {}).get("names", ())
    default = next((name for name in names if precision in PRECISIONS[name]), TENSORFLOW)
    name = request.engine or default
    if name == TENSORFLOW:
        if precision != compute_type:
            raise InputError(
                f"{folder}: found a SavedModel in {compute_type}; expected {precision} for the "
                f"engine {TENSORFLOW}; export with --compute_type={precision}, or use another "
                "engine"
            )
        return Engine(TENSORFLOW, precision, dict(loaded.signatures), loaded)
    _check_precision(name, precision)
    path = folder / FOLDER / (INT8_FILE if precision == "int8" else FLOAT_FILE)
    if "engines" not in info or not path.is_file():
        flags = f"--engines={name}" + (" --int8" if precision == "int8" else "")
        raise InputError(f"{path}: no such file; expected an export that was made with {flags}")
    require_packages([name], f"engine={name}", f", or use --engine={TENSORFLOW}")
    try:
        functions = _engine_functions(loaded, info, path, name, precision)
    except InputError:
        raise
    # Importing, compiling and running a network can raise any exception.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{path}: {name} in {precision} failed with {reason:.300}; expected a network that it "
            f"can run; use --engine={TENSORFLOW}, or export the model again"
        ) from error
    return Engine(name, precision, functions, loaded)


def _engine_functions(
    loaded: Any, info: Mapping[str, Any], path: Path, name: str, precision: str
) -> dict[str, Callable]:
    """Compiles the network of an export, checks its answers, and returns the functions."""
    # Imported here, because programs check their flags before they import TensorFlow.
    from keras_bert.export.engine_network import EngineFunction, difference, open_network

    where = str(path.parent.with_name(INFO))
    spec = NetworkSpec.from_json(info["engines"].get("network"), where)
    network = open_network(name, path, precision, spec)
    inputs = list(info["signatures"]["serving_default"]["inputs"])
    problem = difference(loaded, network, inputs, precision, info["compute_type"])
    if problem is not None:
        raise InputError(
            f"{path}: the answers of {name} in {precision} are not those of the SavedModel: "
            f"{problem}; use --engine={TENSORFLOW}, or another precision"
        )
    return {
        signature: EngineFunction(loaded, signature, network) for signature in loaded.signatures
    }


def _check_precision(engine: str, precision: str) -> None:
    """Raises an InputError if an engine lacks a precision."""
    supported = {TENSORFLOW: COMPUTE_TYPES, **PRECISIONS}[engine]
    if precision not in supported:
        engines = [name for name, precisions in PRECISIONS.items() if precision in precisions]
        remedy = f"; {precision} needs the engine {' or '.join(engines)}" if engines else ""
        raise InputError(
            f"engine={engine}: found precision {precision}; expected one of "
            f"{', '.join(supported)}{remedy}"
        )


def require_packages(packages: Sequence[str], user: str, remedy: str = "") -> None:
    """Raises an InputError if a package is not installed.

    `user` names what needs the packages, and `remedy` what to do without them.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{user}: the package {package} is not installed; install it with "
                f"pip install 'keras-bert-pipeline[{_EXTRAS[package]}]'{remedy}"
            )
