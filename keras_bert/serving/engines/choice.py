"""Opens the engine of an export: the given one, or the fastest that passes its parity check."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.opening import (
    Engine,
    Export,
    open_network_engine,
    saved_model_engine,
)
from keras_bert.serving.engines.spec import (
    ALL_PRECISIONS,
    ENGINES,
    PRECISIONS,
    TENSORFLOW,
    check_precision,
    engine_flags,
)
from keras_bert.serving.extras import install_command, is_installed

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
        if self.precision and self.engine != AUTO:
            check_precision(self.engine, self.precision)


ANY_ENGINE = EngineRequest()


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
        InputError: the given engine is not installed, lacks its file, fails, or does not give the
            SavedModel's answers; or no engine has the precision.
    """
    export = Export(folder, loaded, info or {})
    precision = request.precision or export.compute_type
    if request.engine == AUTO:
        return _fastest(export, precision)
    if request.engine == TENSORFLOW:
        if precision != export.compute_type:
            raise InputError(
                f"{folder}: found a SavedModel in {export.compute_type}; expected {precision} for "
                f"the engine {TENSORFLOW}; export with --compute_type={precision}, or use another "
                "engine"
            )
        return saved_model_engine(export)
    return open_network_engine(export, request.engine, precision)


def _fastest(export: Export, precision: str) -> Engine:
    names = [name for name, known in PRECISIONS.items() if precision in known]
    names = names if export.has_engines else []
    installed = [name for name in names if is_installed(name)]
    missing = [name for name in names if name not in installed]
    if missing and export.file(precision).is_file():
        commands = ", ".join(f"{name} ({install_command(name)})" for name in missing)
        logging.info(
            "%s can also run on engines that are not installed: %s", export.folder, commands
        )
    engines = [saved_model_engine(export)] if export.compute_type == precision else []
    for name in installed:
        try:
            engines.append(open_network_engine(export, name, precision))
        except InputError as error:
            logging.warning("Skipping the engine %s: %s", name, error)
    if not engines:
        raise InputError(
            f"{export.folder}: found no engine for {precision}; expected a SavedModel in "
            f"{precision}, or an export with engines and one of them installed; export with "
            f"{engine_flags(precision)}"
        )
    if len(engines) == 1:
        return engines[0]
    import tensorflow as tf

    from keras_bert.serving.engines.parity import example_inputs
    from keras_bert.serving.engines.tuning import SAMPLE_ROWS

    inputs = {
        name: tf.tile(texts, [SAMPLE_ROWS // len(texts)])
        for name, texts in example_inputs(export.input_names).items()
    }
    seconds = [_seconds(engine, inputs) for engine in engines]
    for engine, taken in zip(engines, seconds, strict=True):
        logging.info("Engine %s: %.1f ms for %d texts", engine.name, 1e3 * taken, SAMPLE_ROWS)
    return engines[seconds.index(min(seconds))]


def _seconds(engine: Engine, inputs: Mapping[str, Any]) -> float:
    """Returns the shortest time of a few calls; infinity, with a warning, if the engine fails."""
    from keras_bert.serving.engines.parity import SIGNATURE
    from keras_bert.serving.engines.tuning import best_seconds

    function = engine.functions[SIGNATURE]
    try:
        return best_seconds(lambda: [value.numpy() for value in function(**inputs).values()])
    except Exception as error:
        logging.warning("Skipping the engine %s: %s", engine.name, error)
        return float("inf")
