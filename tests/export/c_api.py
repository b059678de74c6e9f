"""Loads exported models as TensorFlow Serving does: in C++, without Python's TensorFlow.

    python tests/export/c_api.py SITE_PACKAGES EXPORT_DIR...

SITE_PACKAGES is the folder of TensorFlow and tensorflow-text; of the latter, only the libraries
with the ops that keras_bert's tokenizer uses are loaded. Imports only the standard library.
"""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

TEXT_LIBRARIES = ("_fast_bert_normalizer", "_fast_wordpiece_tokenizer", "_whitespace_tokenizer_v2")


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


class TensorFlow:
    """The C API of an installed TensorFlow."""

    def __init__(self, site_packages: Path):
        folder = site_packages / "tensorflow"
        # Loaded first and globally, so that tensorflow-text's libraries find it.
        ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
        self._status = c_void_p(self._call("TF_NewStatus"))
        for name in TEXT_LIBRARIES:
            path = site_packages / "tensorflow_text" / "python" / "ops" / f"{name}.so"
            self._call("TF_LoadLibrary", c_char_p(str(path).encode()), self._status)
            self._check(path)

    def op_list(self) -> bytes:
        """Returns the definitions of all ops as a serialized OpList."""
        buffer = self._call("TF_GetAllOpList", result=POINTER(Buffer)).contents
        return ctypes.string_at(buffer.data, buffer.length)

    def load(self, export_dir: str) -> None:
        """Loads a SavedModel into a session."""
        graph, options = (
            c_void_p(self._call(name)) for name in ("TF_NewGraph", "TF_NewSessionOptions")
        )
        tags, path = (c_char_p * 1)(b"serve"), c_char_p(export_dir.encode())
        arguments = (options, None, path, tags, c_int(1), graph, None, self._status)
        self._call("TF_LoadSessionFromSavedModel", *arguments)
        self._check(export_dir)

    def _call(self, name: str, *arguments, result=c_void_p):
        function = getattr(self._library, name)
        function.restype = result
        return function(*arguments)

    def _check(self, where: object) -> None:
        if self._call("TF_GetCode", self._status, result=c_int):
            message = self._call("TF_Message", self._status, result=c_char_p)
            raise RuntimeError(f"{where}: {message.decode()}")


if __name__ == "__main__":
    tensorflow = TensorFlow(Path(sys.argv[1]))
    for export_dir in sys.argv[2:]:
        tensorflow.load(export_dir)
    assert not [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]
