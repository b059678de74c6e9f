"""Registers the classes of keras_bert with Keras as soon as a program imports Keras.

`keras.models.load_model` needs the registration to open files of `model.save`. keras_bert must not
import Keras when it is imported itself, so it installs an import hook.
"""

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_MODULES = (
    "keras_bert.models",
    "keras_bert.optimization.adamw",
    "keras_bert.optimization.lamb",
    "keras_bert.optimization.schedules",
    "keras_bert.tasks.losses",
)


def register_with_keras() -> None:
    """Imports the modules with registered classes, now or as soon as Keras is imported."""
    if "keras" in sys.modules:
        _import_modules()
    elif not any(isinstance(finder, _KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KerasFinder())


def _import_modules() -> None:
    for name in _MODULES:
        importlib.import_module(name)


class _KerasFinder:
    """An import hook that imports the modules of keras_bert right after Keras."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        import importlib.util  # Takes milliseconds.

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _import_modules()

            spec.loader.exec_module = exec_module
        return spec
