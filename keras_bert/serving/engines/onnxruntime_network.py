"""Runs a network with onnxruntime, on the CPU."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.compiled import CompiledNetwork


class OnnxRuntimeNetwork(CompiledNetwork):
    """A network in onnxruntime, whose file determines the precision.

    Raises:
        InputError: the file is damaged.
    """

    def __init__(self, path: Path, threads: int, parallel: int):
        options = onnxruntime.SessionOptions()
        # Concurrent calls share one pool, and the threads that call take part in the computation.
        # The pool has one thread less than this number.
        options.intra_op_num_threads = max(threads - parallel + 1, 1)
        options.inter_op_num_threads = 1
        # Memory patterns are stored for each shape of the inputs, and here most calls have another.
        options.enable_mem_pattern = False
        options.log_severity_level = 3  # Errors.
        # A thread that spins after a call takes time from decoding, and with several calls at a
        # time also from the others.
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "1" if parallel == 1 else "0"
        )
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers)
        except Exception as error:  # onnxruntime's errors have no common class.
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path}: onnxruntime cannot load the file: {reason:.200}; expected the file that "
                "the export wrote; export the model again"
            ) from error
        self.parallel = parallel
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows."""
        return dict(zip(self._names, self._session.run(self._names, inputs), strict=True))
