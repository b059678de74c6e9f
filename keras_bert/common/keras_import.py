"""Registers the classes of keras_bert with Keras as soon as a program imports Keras.

`keras.models.load_model` needs the registration to open files of `model.save`. `import keras_bert`
must not import Keras, so it installs an import hook.
"""

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_MODULES = (
    "keras_bert.models",
    "keras_bert.models.pooled_encoder",
    "keras_bert.optimization.optimizers",
    "keras_bert.optimization.schedules",
    "keras_bert.tasks.embedding.losses",
    "keras_bert.tasks.losses",
    "keras_bert.tasks.soft_losses",
)


def register_with_keras() -> None:
    """Imports the modules that register classes: now if Keras is imported, else right after it."""
    if "keras" in sys.modules:
        _import_modules()
    elif not any(isinstance(finder, _KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KerasFinder())


def _import_modules() -> None:
    for name in _MODULES:
        importlib.import_module(name)


class _KerasFinder:
    """An import hook that imports the modules in `_MODULES` right after Keras.

    If a module of keras_bert imports Keras, they are imported after that module: they may need it.
    """

    def __init__(self):
        self._unfinished: set[str] = set()  # The names of modules that are being imported.

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras" and not name.startswith("keras_bert."):
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                self._unfinished.add(name)
                try:
                    load(module)
                finally:
                    self._unfinished.discard(name)
                if "keras" in sys.modules and not self._unfinished and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _import_modules()

            spec.loader.exec_module = exec_module
        return spec
