"""Weights between a model and the files of any checkpoint, by our variable paths.

In: a model and a file's weights under the file's names. Out: the model filled and a `LoadReport`,
or one error that lists everything that does not fit. How a format names and lays out the weights
is its `Layout`; float16 and bfloat16 become float32, as the model's variables are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import keras
import numpy as np

from keras_bert.common.errors import InputError


@dataclass(frozen=True)
class Layout:
    """The names and layout of our models' variables in one format.

    Attributes:
        name: our variable's path -> the format's name.
        store: (path, array as ours) -> array as the format keeps it.
        restore: (path, array as the format keeps it) -> ours, but for its shape.
        encoder_prefix: the prefix of the names of the encoder's weights.
        buffers: names under that prefix that are no weights.
        tied_decoder: the name of a second copy of the word embeddings, if the format has one.
    """

    name: Callable[[str], str]
    store: Callable[[str, np.ndarray], np.ndarray]
    restore: Callable[[str, np.ndarray], np.ndarray]
    encoder_prefix: str
    buffers: frozenset[str] = frozenset()
    tied_decoder: str | None = None

    def stored_shape(self, path: str, shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape that the format gives to one of our variables.

        Args:
            path: the variable's path.
            shape: its shape here.
        """
        return self.store(path, np.broadcast_to(np.float32(0), tuple(shape))).shape


@dataclass(frozen=True)
class StoredWeights:
    """The weights of an open file.

    Attributes:
        source: the file, for messages.
        layout: how it names and lays them out.
        shapes: name -> shape, without an optimizer's slots.
        read: name -> array, while the file is open.
        spelling: name -> how the file itself spells it, where that differs.
        skipped: the optimizer's slots and counters that were passed over.
    """

    source: str
    layout: Layout
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    spelling: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0

    @property
    def num_labels(self) -> int | None:
        """The logits of the classifier, or None without one.

        Raises:
            InputError: its bias is no vector.
        """
        shape = self.shapes.get(self.layout.name("classifier/bias"))
        if shape is not None and len(shape) != 1:
            raise InputError(f"{self.source}: the classifier's bias has shape {list(shape)}")
        return None if shape is None else shape[0]

    def spelt(self, name: str) -> str:
        """Returns the name as it stands in the file."""
        return self.spelling.get(name, name)


@dataclass(frozen=True)
class LoadReport:
    """The outcome of loading weights into a model; programs print it.

    Attributes:
        source: the file.
        loaded: paths of the variables that the file filled.
        new: paths of the variables that the file lacks; they keep their fresh start.
        ignored: names in the file that the model has no place for.
        skipped: the optimizer's slots and counters in the file.
    """

    source: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]
    skipped: int = 0

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} weights loaded"]
        if self.new:
            parts.append(f"new, freshly initialised: {', '.join(self.new)}")
        if self.ignored:
            parts.append(f"in the file but not in the model: {', '.join(self.ignored)}")
        if self.skipped:
            parts.append(f"{self.skipped} optimizer slots and counters skipped")
        return "; ".join(parts)


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns a model's weights by their paths, as float32; LoRA is merged into the kernels.

    Args:
        model: one of keras_bert.models, or the encoder.

    Raises:
        InputError: the model is quantized.
    """
    weights = {
        variable.path: keras.ops.convert_to_numpy(variable.value)
        for variable in model.weights
        if not variable.name.startswith("lora_kernel_")
    }
    for layer in model._flatten_layers():
        if layer.quantization_mode is not None:
            raise InputError(
                f"{layer.path} is quantized to {layer.quantization_mode}; expected a model with "
                "float weights. model.save writes a quantized one to a .keras file"
            )
        if getattr(layer, "lora_enabled", False):
            down, up = map(keras.ops.convert_to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
            path = f"{layer.path}/kernel"
            weights[path] = weights[path] + layer.lora_alpha / layer.lora_rank * (down @ up)
    return {path: value.astype(np.float32) for path, value in weights.items()}


def stored_arrays(weights: Mapping[str, np.ndarray], layout: Layout) -> dict[str, np.ndarray]:
    """Returns weights under a format's names, laid out as it keeps them.

    Args:
        weights: our variable's path -> array.
        layout: the format's.
    """
    return {
        layout.name(path): np.ascontiguousarray(layout.store(path, value))
        for path, value in weights.items()
    }


def load_weights(model: keras.Model, stored: StoredWeights) -> LoadReport:
    """Fills a model from an open file; nothing is touched unless all of it fits.

    The encoder's weights must all be there, and the file must have no others. A head, or the
    pooler, may be missing as a whole and then keeps its fresh start.

    Args:
        model: one of keras_bert.models, or the encoder.
        stored: the file's weights.

    Returns:
        The weights that were loaded, newly initialized and ignored.

    Raises:
        InputError: weights are missing, misshapen, or have no place in the encoder; all are listed.
    """
    layout = stored.layout
    names = {variable.path: layout.name(variable.path) for variable in model.weights}
    new = [path for path, name in names.items() if name not in stored.shapes]
    loaded = [variable for variable in model.weights if variable.path not in new]
    problems = _misfits(stored, names, new, loaded)
    if problems:
        raise InputError(f"{stored.source} does not fit the model: {'; '.join(problems)}")
    for variable in loaded:
        value = layout.restore(variable.path, stored.read(names[variable.path]))
        variable.assign(np.asarray(value).astype(np.float32).reshape(variable.shape))
    used = {*names.values(), layout.tied_decoder}
    return LoadReport(
        source=stored.source,
        loaded=tuple(variable.path for variable in loaded),
        new=tuple(new),
        ignored=tuple(sorted(stored.spelt(name) for name in set(stored.shapes) - used)),
        skipped=stored.skipped,
    )


def _misfits(
    stored: StoredWeights, names: Mapping[str, str], new: list[str], loaded: list[keras.Variable]
) -> list[str]:
    layout = stored.layout
    held = {_part(variable.path) for variable in loaded}
    problems = [f"{names[path]} is missing" for path in new if _part(path) in held | {"encoder"}]
    for variable in loaded:
        name = names[variable.path]
        expected = layout.stored_shape(variable.path, variable.shape)
        if stored.shapes[name] != expected:
            problems.append(
                f"{stored.spelt(name)} has shape {list(stored.shapes[name])}, "
                f"expected {list(expected)}"
            )
    foreign = set(stored.shapes) - set(names.values()) - layout.buffers
    problems += [
        f"{stored.spelt(name)} has no place in the model"
        for name in sorted(foreign)
        if name.startswith(layout.encoder_prefix)
    ]
    if not problems and "masked_lm" in held and layout.tied_decoder in stored.shapes:
        table = stored.read(layout.name("encoder/embeddings/word_embeddings"))
        if not np.array_equal(stored.read(layout.tied_decoder), table):
            problems.append(
                f"{layout.tied_decoder} differs from the word embeddings; expected a masked-LM "
                "head that is tied to them"
            )
    return problems


def _part(path: str) -> str:
    """Returns which part of the model a variable belongs to; parts load as a whole."""
    return "pooler" if path.startswith("encoder/pooler/") else path.split("/")[0]
