"""Runs a network with OpenVINO, on the CPU."""

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.compiled import CompiledNetwork

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVINONetwork(CompiledNetwork):
    """A network in OpenVINO, in `float32` or `bfloat16`, with the outputs `names`.

    Raises:
        InputError: the file is damaged.
    """

    def __init__(
        self, path: Path, names: Sequence[str], precision: str, threads: int, parallel: int
    ):
        config = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[precision],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": parallel,
            # Other threads of the process, such as TensorFlow's, may use the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            self._model = _core().compile_model(str(path), "CPU", config)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path}: OpenVINO cannot load the file: {reason:.200}; expected the file that the "
                "export wrote; export the model again"
            ) from error
        self.parallel = parallel
        self._names = names
        self._requests = threading.local()  # A request computes one call at a time.

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows."""
        request = self._request()
        tensors = {
            name: openvino.Tensor(value, shared_memory=True) for name, value in inputs.items()
        }
        for name, tensor in tensors.items():
            request.set_tensor(name, tensor)
        request.start_async()
        request.wait()
        # Copies, because the next call writes to the same memory.
        return {name: np.array(request.get_tensor(name).data) for name in self._names}

    def _request(self) -> Any:
        if not hasattr(self._requests, "value"):
            self._requests.value = self._model.create_infer_request()
        return self._requests.value


@functools.cache
def _core() -> openvino.Core:
    """Returns the process's only Core, which is never freed.

    OpenVINO gives the thread that loads its CPU plugin an alternate signal stack. When the last
    Core is freed, the stack is freed but stays in use: the next SIGTERM would be a segmentation
    fault (OpenVINO 2026.4).
    """
    return openvino.Core()
