"""Turns off TensorFlow's graph optimization in the processes that tests start.

It takes four fifths of the time of a tiny model's first step. Python imports this module at start,
because its folder is in PYTHONPATH.
"""

import contextlib
import sys


class _Finder:
    """An import hook that sets the option right after TensorFlow is imported."""

    def find_spec(self, name, path, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in sys.meta_path)), None)
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                with contextlib.suppress(AttributeError):  # A stand-in for TensorFlow.
                    options = {"disable_meta_optimizer": True}
                    module.config.optimizer.set_experimental_options(options)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
