"""Names the engines and their precisions, and opens the engine that runs an export.

Importing this module imports neither TensorFlow nor an engine.
"""

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert.errors import InputError

TENSORFLOW = "tensorflow"
COMPUTE_TYPES = ("float32", "bfloat16")  # The precisions of a SavedModel.
# Engine besides TensorFlow -> the precisions it has.
PRECISIONS = {
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16"),
}

# The folder, in a version's folder, of the engines' files: the network in ONNX's format.
FOLDER = "engines"
FLOAT_FILE = "network.onnx"
INT8_FILE = "network_int8.onnx"

# Package -> the extra in setup.cfg that installs it; `serving` for the others.
_EXTRAS = {"onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino"}


class NetworkSpec(NamedTuple):
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
        return {**self._asdict(), "per": [list(pair) for pair in self.per.items()]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "NetworkSpec":
        """Creates the object from the content of `to_json`."""
        return cls(**{**content, "per": dict(content["per"])})


def check_engine(engine: str, precision: str) -> None:
    """Checks the engine and the precision that a user asks for; empty means the default.

    Raises:
        InputError: a value is unknown, or the engine does not have the precision.
    """
    precisions = {TENSORFLOW: COMPUTE_TYPES, **PRECISIONS}
    for name, value, values in (
        ("engine", engine, [*precisions]),
        ("precision", precision, [*COMPUTE_TYPES, "int8"]),
    ):
        if value and value not in values:
            raise InputError(f"{name}={value!r}: expected one of {', '.join(values)}")
    if engine and precision and precision not in precisions[engine]:
        engines = [name for name in PRECISIONS if precision in PRECISIONS[name]]
        raise InputError(
            f"engine={engine}: found precision {precision}; expected one of "
            f"{', '.join(precisions[engine])}; {precision} needs the engine {' or '.join(engines)}"
        )


class Engine:
    """An engine that is ready to run an export.

    Args:
        folder: the version folder.
        loaded: its loaded SavedModel.
        info: the content of its export.json.
        engine: the engine; empty for the first engine of the export that has the precision, or
            TensorFlow if there is none.
        precision: the precision; empty for the compute type of the export.
        array_steps: returns the attribute `steps` of `EngineFunction` for the SavedModel and the
            content of export.json.

    Attributes:
        name: the name of the engine.
        precision: the precision of its matrix products.
        functions: {signature: function}, which take and return arrays by name; strings are
            object arrays of byte strings.

    Raises:
        InputError: the engine lacks the precision or its file, is not installed, fails for any
            reason, or does not give the SavedModel's answers.
    """

    def __init__(
        self,
        folder: Path,
        loaded: Any,
        info: Mapping[str, Any],
        engine: str = "",
        precision: str = "",
        array_steps: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    ):
        # Imported here, because programs check their flags before they import TensorFlow.
        from keras_bert.export.engine_network import (
            SIGNATURE,
            EngineFunction,
            call_saved,
            difference,
            open_network,
        )

        compute_type = info.get("compute_type", "float32")
        engines = info.get("engines", {})
        self.precision = precision = precision or compute_type
        default = next((n for n in engines.get("names", ()) if precision in PRECISIONS[n]), "")
        self.name = name = engine or default or TENSORFLOW
        self._loaded = loaded  # Its functions hold its variables weakly.
        if name == TENSORFLOW:
            if precision != compute_type:
                raise InputError(
                    f"{folder}: found a SavedModel in {compute_type}; expected {precision} for the "
                    f"engine {name}; export with compute_type={precision}, or use another engine"
                )
            self.functions: dict[str, Callable] = {
                signature: functools.partial(call_saved, loaded.signatures[signature])
                for signature in loaded.signatures
            }
            return
        check_engine(name, precision)
        path = folder / FOLDER / (INT8_FILE if precision == "int8" else FLOAT_FILE)
        if not engines or not path.is_file():
            made = f"engines={name}" + (" and int8" if precision == "int8" else "")
            raise InputError(f"{path}: no such file; expected an export that was made with {made}")
        require_packages([name], f"engine={name}", f", or use the engine {TENSORFLOW}")
        steps = array_steps(loaded, info) if array_steps is not None else None
        try:
            network = open_network(name, path, precision, NetworkSpec.from_json(engines["network"]))
            self.functions = {
                signature: EngineFunction(loaded, signature, network)
                for signature in loaded.signatures
            }
            self.functions[SIGNATURE].steps = steps
            problem = difference(loaded, self.functions, precision, compute_type)
        # Importing, compiling and running a network can raise any exception.
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"{path}: {name} in {precision} failed with {reason:.300}; expected a network that "
                f"it can run; use the engine {TENSORFLOW}, or export the model again"
            ) from error
        if problem is not None:
            raise InputError(
                f"{path}: the answers of {name} in {precision} are not those of the SavedModel: "
                f"{problem}; use the engine {TENSORFLOW}, or another precision"
            )


def require_packages(packages: Sequence[str], user: str, remedy: str = "") -> None:
    """Raises an InputError if a package is not installed.

    `user` names what needs the packages, and `remedy` what to do without them.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{user}: the package {package} is not installed; install it with "
                f"pip install 'keras-bert-pipeline[{_EXTRAS.get(package, 'serving')}]'{remedy}"
            )
