"""Names the engines and precisions, and describes what the network of a task computes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from keras_bert.common.errors import InputError

TENSORFLOW = "tensorflow"
COMPUTE_TYPES = ("float32", "bfloat16")  # The precisions of a SavedModel.
# Engine besides TensorFlow -> the precisions it has.
PRECISIONS = {
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16"),
}
INT8_ENGINES = tuple(name for name, known in PRECISIONS.items() if "int8" in known)
ENGINES = (TENSORFLOW, *PRECISIONS)
ALL_PRECISIONS = (*COMPUTE_TYPES, "int8")

# The folder, in a version's folder, of the engines' files: the network in ONNX's format.
FOLDER = "engines"
FLOAT_FILE = "network.onnx"
INT8_FILE = "network_int8.onnx"


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


def check_precision(engine: str, precision: str) -> None:
    """Raises an InputError if an engine lacks a precision."""
    own = {TENSORFLOW: COMPUTE_TYPES, **PRECISIONS}[engine]
    if precision not in own:
        others = [name for name, known in PRECISIONS.items() if precision in known]
        remedy = f"; {precision} needs the engine {' or '.join(others)}" if others else ""
        raise InputError(
            f"engine={engine}: found precision {precision}; expected one of "
            f"{', '.join(own)}{remedy}"
        )


def engine_flags(precision: str, engine: str = "") -> str:
    """Returns the flags of the export program for an engine, or for all that have the precision."""
    names = [engine] if engine else [name for name, own in PRECISIONS.items() if precision in own]
    return f"--engines={','.join(names)}" + (" --int8" if precision == "int8" else "")
