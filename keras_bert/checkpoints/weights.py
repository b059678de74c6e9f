"""Loads weights from checkpoints of any format into models, and converts weights for saving.

float16, bfloat16 and float64 weights are converted to float32, the dtype of the model's variables.
Other dtypes, and weights that are not finite, are rejected.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import keras
import ml_dtypes
import numpy as np

from keras_bert.errors import InputError

WEIGHTS = "model.safetensors"
FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
_FLOATS = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in FLOAT_TYPES]
# The layer of a head -> a variable that the head always has.
_HEADS = {
    "masked_lm": "masked_lm/output_bias",
    "next_sentence": "next_sentence/bias",
    "classifier": "classifier/bias",
    "span": "span/bias",
}


class StoredWeights:
    """The weights of a checkpoint, open for reading; the base class of those of each format.

    `names`, `is_transposed` and `stored_shape` define the format; without them, names and arrays
    are those of this library's variables.

    Attributes:
        source: the path of the file; error messages start with it.
        shapes: {name in the format: shape}, without the optimizer's slots and counters.
        skipped: the number of optimizer slots and counters in the file.
        names: the format's names: (regular expression, replacement) pairs, which are applied one
            after the other to the path of a variable.
        encoder_prefix: the prefix of the names of the encoder's weights.
        buffers: names with `encoder_prefix` that are not weights.
        tied_decoder: the name of a second copy of the word embeddings, if the format has one.
    """

    names: Sequence[tuple[str, str]] = ()
    encoder_prefix = "encoder/"
    buffers: frozenset[str] = frozenset()
    tied_decoder: str | None = None

    def __init__(self, source: object):
        self.source = str(source)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.skipped = 0
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @classmethod
    def name(cls, path: str) -> str:
        """Converts the path of a model's variable to its name in the format."""
        for pattern, replacement in cls.names:
            path = re.sub(pattern, replacement, path)
        return path

    @classmethod
    def is_transposed(cls, path: str) -> bool:
        """Returns whether the format stores the transpose of a variable."""
        return False

    def stored_shape(self, path: str, shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape of a stored variable; `shape` is its shape in the model."""
        return tuple(shape)[::-1] if self.is_transposed(path) else tuple(shape)

    def name_in_file(self, name: str) -> str:
        """Returns the name of a weight in the file, which may be an older name."""
        return name

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        raise NotImplementedError

    @property
    def heads(self) -> set[str]:
        """The heads that are stored: `masked_lm`, `next_sentence`, `classifier` and `span`."""
        return {head for head, path in _HEADS.items() if self.has(path)}

    @property
    def num_labels(self) -> int | None:
        """The number of the classifier's logits; None without a classifier."""
        shape = self.shapes.get(self.name("classifier/bias"))
        if shape is not None and len(shape) != 1:
            raise InputError(
                f"{self.source}: the bias of the classifier has shape {list(shape)}; expected one "
                "dimension"
            )
        return None if shape is None else shape[0]

    def has(self, path: str) -> bool:
        """Returns whether the weights of a model's variable are stored."""
        return self.name(path) in self.shapes

    def read_float32(self, name: str) -> np.ndarray:
        """Reads a weight as float32."""
        value = np.asarray(self.read(name))
        if value.dtype not in _FLOATS:
            raise self.wrong_type(name, str(value.dtype))
        with np.errstate(over="ignore"):  # A float64 value may be too large for float32.
            value = value.astype(np.float32)
        if not np.isfinite(value).all():
            count = value.size - np.count_nonzero(np.isfinite(value))
            raise InputError(
                f"{self.source}: {count} of the {value.size} values of {self.name_in_file(name)} "
                "are inf or NaN; expected finite weights. The file is damaged, or the training "
                "that saved it had diverged"
            )
        return value

    def wrong_type(self, name: str, dtype: str) -> InputError:
        """Returns the error for a weight of the dtype `dtype`, which cannot be loaded."""
        return InputError(
            f"{self.source}: {self.name_in_file(name)} has type {dtype}; expected one of "
            f"{', '.join(FLOAT_TYPES)}. Quantized checkpoints must be converted first by the "
            "library that wrote them"
        )


class LoadReport(NamedTuple):
    """The result of loading weights into a model; programs print it.

    Attributes:
        source: the path of the file.
        loaded: paths of the loaded variables.
        new: paths of the variables that are not in the file and stay newly initialized.
        ignored: names in the file that are not in the model.
        skipped: as in `StoredWeights`.
    """

    source: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]
    skipped: int = 0

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} weights loaded"]
        if self.new:
            parts.append(f"newly initialized: {', '.join(self.new)}")
        if self.ignored:
            parts.append(f"in the file but not in the model: {', '.join(self.ignored)}")
        if self.skipped:
            parts.append(f"{self.skipped} optimizer slots and counters skipped")
        return "; ".join(parts)


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns {variable path: float32 array} of a model, with LoRA merged into the kernels."""
    weights = {
        variable.path: keras.ops.convert_to_numpy(variable.value)
        for variable in model.weights
        if not variable.name.startswith("lora_kernel_")
    }
    for layer in model._flatten_layers():
        if layer.quantization_mode is not None:
            raise InputError(
                f"{layer.path} is quantized to {layer.quantization_mode}; expected float weights. "
                "Use model.save to write a quantized model to a .keras file"
            )
        if getattr(layer, "lora_enabled", False):
            down, up = map(keras.ops.convert_to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
            path = f"{layer.path}/kernel"
            weights[path] = weights[path] + layer.lora_alpha / layer.lora_rank * (down @ up)
    return {path: value.astype(np.float32) for path, value in weights.items()}


def load_weights(model: keras.Model, stored: StoredWeights) -> LoadReport:
    """Loads the weights of an open file into a model; changes nothing if there is a mismatch.

    The file must contain all weights of the encoder, and no other encoder weights. If it lacks the
    pooler or a head completely, that part stays newly initialized. The error lists all weights that
    are missing, of another shape or not in the encoder.
    """
    names = {variable.path: stored.name(variable.path) for variable in model.weights}
    new = [path for path, name in names.items() if name not in stored.shapes]
    loaded = [variable for variable in model.weights if variable.path not in new]
    problems = _mismatches(stored, names, new, loaded)
    if problems:
        raise InputError(f"{stored.source} does not match the model: {'; '.join(problems)}")
    # All weights are read before the first is assigned, because reading may fail.
    values = [stored.read_float32(names[variable.path]) for variable in loaded]
    for variable, value in zip(loaded, values, strict=True):
        value = value.T if stored.is_transposed(variable.path) else value
        variable.assign(value.reshape(variable.shape))
    used = {*names.values(), stored.tied_decoder}
    return LoadReport(
        source=stored.source,
        loaded=tuple(variable.path for variable in loaded),
        new=tuple(new),
        ignored=tuple(sorted(stored.name_in_file(name) for name in set(stored.shapes) - used)),
        skipped=stored.skipped,
    )


def _mismatches(
    stored: StoredWeights, names: Mapping[str, str], new: list[str], loaded: list[keras.Variable]
) -> list[str]:
    loaded_parts = {_part(variable.path) for variable in loaded}
    problems = [
        f"{names[path]} is missing" for path in new if _part(path) in loaded_parts | {"encoder"}
    ]
    for variable in loaded:
        name = names[variable.path]
        expected = stored.stored_shape(variable.path, variable.shape)
        if stored.shapes[name] != expected:
            problems.append(
                f"{stored.name_in_file(name)} has shape {list(stored.shapes[name])}, "
                f"expected {list(expected)}"
            )
    unexpected = set(stored.shapes) - set(names.values()) - stored.buffers
    problems += [
        f"{stored.name_in_file(name)} is not in the model"
        for name in sorted(unexpected)
        if name.startswith(stored.encoder_prefix)
    ]
    if not problems and "masked_lm" in loaded_parts and stored.tied_decoder in stored.shapes:
        table = stored.read_float32(stored.name("encoder/embeddings/word_embeddings"))
        if not np.array_equal(stored.read_float32(stored.tied_decoder), table):
            problems.append(
                f"{stored.tied_decoder} differs from the word embeddings; expected a masked-LM "
                "head that is tied to them"
            )
    return problems


def _part(path: str) -> str:
    """Returns the part of the model that a variable belongs to; parts are loaded as a whole."""
    return "pooler" if path.startswith("encoder/pooler/") else path.split("/")[0]
