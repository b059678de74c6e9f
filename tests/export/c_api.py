"""Runs exported models as TensorFlow Serving does: in C++, without Python's TensorFlow.

    python tests/export/c_api.py SITE_PACKAGES CALLS.json ANSWERS.json

Input: the site-packages folder of TensorFlow and tensorflow-text, and a list of calls:

    [{"export_dir": DIR, "requests": {signature: {input: tensor}}}]
    tensor = {"dtype": "string", "shape": [2], "values": ["a", "b"]}

Output: the list of {signature: {output: tensor}}, or {signature: {"error": message}} for a request
that fails. The values of a tensor are a flat list; the bytes of a string are written as Latin-1,
which can represent any byte. The names of inputs and outputs come from the signatures in
saved_model.pb, as in TensorFlow Serving. The program loads only the libraries of tensorflow-text
with the ops that keras_bert's tokenizer uses.

Imports only the standard library and protobuf. Fails if the Python package of TensorFlow is
imported.
"""

import ctypes
import json
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

TEXT_LIBRARIES = ("_fast_bert_normalizer", "_fast_wordpiece_tokenizer", "_whitespace_tokenizer_v2")

STRING = 7
STRING_BYTES = 24  # Size of a TF_TString.
FORMATS = {1: ("float32", "f"), 3: ("int32", "i"), 9: ("int64", "q"), 10: ("bool", "?")}
TYPES = {name: number for number, (name, _) in FORMATS.items()} | {"string": STRING}


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


class Output(ctypes.Structure):
    """TF_Output."""

    _fields_ = [("operation", c_void_p), ("index", c_int)]


# The functions of TensorFlow's c_api.h that are called: result type and argument types.
FUNCTIONS = {
    "TF_NewStatus": (c_void_p, []),
    "TF_GetCode": (c_int, [c_void_p]),
    "TF_Message": (c_char_p, [c_void_p]),
    "TF_LoadLibrary": (c_void_p, [c_char_p, c_void_p]),
    "TF_GetAllOpList": (POINTER(Buffer), []),
    "TF_NewGraph": (c_void_p, []),
    "TF_NewSessionOptions": (c_void_p, []),
    "TF_NewBuffer": (POINTER(Buffer), []),
    "TF_LoadSessionFromSavedModel": (
        c_void_p,
        [
            *(c_void_p, c_void_p, c_char_p, POINTER(c_char_p), c_int),
            *(c_void_p, POINTER(Buffer), c_void_p),
        ],
    ),
    "TF_GraphOperationByName": (c_void_p, [c_void_p, c_char_p]),
    "TF_SessionRun": (
        None,
        [
            *(c_void_p, c_void_p),
            *(POINTER(Output), POINTER(c_void_p), c_int),
            *(POINTER(Output), POINTER(c_void_p), c_int),
            *(c_void_p, c_int, c_void_p, c_void_p),
        ],
    ),
    "TF_AllocateTensor": (c_void_p, [c_int, POINTER(c_int64), c_int, c_size_t]),
    "TF_TensorData": (c_void_p, [c_void_p]),
    "TF_TensorType": (c_int, [c_void_p]),
    "TF_NumDims": (c_int, [c_void_p]),
    "TF_Dim": (c_int64, [c_void_p, c_int]),
    "TF_TensorElementCount": (c_int64, [c_void_p]),
    "TF_StringInit": (None, [c_void_p]),
    "TF_StringCopy": (None, [c_void_p, c_char_p, c_size_t]),
    "TF_StringGetDataPointer": (c_void_p, [c_void_p]),
    "TF_StringGetSize": (c_size_t, [c_void_p]),
}


class TensorFlow:
    """The C API of an installed TensorFlow; its functions are attributes.

    Args:
        site_packages: the folder of Python packages with TensorFlow.
        text_libraries: the libraries of tensorflow-text to load.
    """

    def __init__(self, site_packages: Path, text_libraries: Sequence[str] = TEXT_LIBRARIES):
        folder = site_packages / "tensorflow"
        # Loaded first and globally, so that tensorflow-text's libraries find it.
        ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.status = self.TF_NewStatus()
        for name in text_libraries:
            path = site_packages / "tensorflow_text" / "python" / "ops" / f"{name}.so"
            self.TF_LoadLibrary(str(path).encode(), self.status)
            self.check(path)

    def check(self, what: object) -> None:
        """Raises an error with the message of the last call if it failed."""
        if self.TF_GetCode(self.status):
            raise RuntimeError(f"{what}: {self.TF_Message(self.status).decode()}")

    def op_list(self) -> bytes:
        """Returns the definitions of all ops as a serialized OpList."""
        return contents(self.TF_GetAllOpList())

    def make_tensor(self, tensor: Mapping) -> int:
        """Creates a tensor from its JSON description and returns its address."""
        kind, shape, values = TYPES[tensor["dtype"]], tensor["shape"], tensor["values"]
        if kind == STRING:
            content, size = b"", STRING_BYTES * len(values)
        else:
            content = struct.pack(f"{len(values)}{FORMATS[kind][1]}", *values)
            size = len(content)
        created = self.TF_AllocateTensor(kind, (c_int64 * len(shape))(*shape), len(shape), size)
        data = self.TF_TensorData(created)
        if kind != STRING:
            ctypes.memmove(data, content, size)
            return created
        for index, value in enumerate(values):
            place, value = data + index * STRING_BYTES, value.encode("latin-1")
            self.TF_StringInit(place)
            self.TF_StringCopy(place, value, len(value))
        return created

    def read_tensor(self, tensor: int) -> dict:
        """Returns the JSON description of the tensor at an address."""
        shape = [self.TF_Dim(tensor, axis) for axis in range(self.TF_NumDims(tensor))]
        count = self.TF_TensorElementCount(tensor)
        data = self.TF_TensorData(tensor)
        kind = self.TF_TensorType(tensor)
        if kind != STRING:
            name, letter = FORMATS[kind]
            content = ctypes.string_at(data, struct.calcsize(letter) * count) if count else b""
            values = struct.unpack(f"{count}{letter}", content)
            return {"dtype": name, "shape": shape, "values": list(values)}
        values = []
        for index in range(count):
            place = data + index * STRING_BYTES
            start, size = self.TF_StringGetDataPointer(place), self.TF_StringGetSize(place)
            values.append(ctypes.string_at(start, size).decode("latin-1"))
        return {"dtype": "string", "shape": shape, "values": values}


class Model:
    """A SavedModel in a session.

    Args:
        tensorflow: the C API.
        export_dir: the SavedModel's folder.
    """

    def __init__(self, tensorflow: TensorFlow, export_dir: str):
        self.tensorflow = tensorflow
        self.graph = tensorflow.TF_NewGraph()
        options, buffer = tensorflow.TF_NewSessionOptions(), tensorflow.TF_NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        self.session = tensorflow.TF_LoadSessionFromSavedModel(
            options, None, export_dir.encode(), tags, 1, self.graph, buffer, tensorflow.status
        )
        tensorflow.check(export_dir)
        self.signatures = read_signatures(contents(buffer))

    def run(self, name: str, request: Mapping[str, Mapping]) -> dict[str, dict]:
        """Calls a signature: {input: tensor} -> {output: tensor}."""
        tensorflow, signature = self.tensorflow, self.signatures[name]
        if request.keys() != signature["inputs"].keys():
            raise ValueError(f"{name} takes {sorted(signature['inputs'])}, got {sorted(request)}")
        inputs = self._places(signature["inputs"][key] for key in request)
        outputs = self._places(signature["outputs"].values())
        fed = (c_void_p * len(inputs))(*map(tensorflow.make_tensor, request.values()))
        fetched = (c_void_p * len(outputs))()
        tensorflow.TF_SessionRun(
            *(self.session, None),
            *(inputs, fed, len(inputs)),
            *(outputs, fetched, len(outputs)),
            *(None, 0, None, tensorflow.status),
        )
        tensorflow.check(name)
        values = map(tensorflow.read_tensor, fetched)
        return dict(zip(signature["outputs"], values, strict=True))

    def _places(self, names: Iterable[str]) -> ctypes.Array:
        """Finds tensors by their names, `operation:index`."""
        places = []
        for name in names:
            operation, _, index = name.partition(":")
            found = self.tensorflow.TF_GraphOperationByName(self.graph, operation.encode())
            if found is None:
                raise ValueError(f"the graph has no {operation!r}")
            places.append(Output(found, int(index)))
        return (Output * len(places))(*places)


def read_signatures(meta_graph: bytes) -> dict[str, dict[str, dict[str, str]]]:
    """Reads a serialized MetaGraphDef: {signature: {"inputs": {name: tensor name}, "outputs"}}."""

    def entries(values: Sequence[Message]) -> dict[str, str]:
        return {entry.key: entry.value.name for entry in values}

    return {
        entry.key: {"inputs": entries(entry.value.inputs), "outputs": entries(entry.value.outputs)}
        for entry in _meta_graph_class().FromString(meta_graph).signature_def
        if not entry.key.startswith("__")  # Skips the initialization op.
    }


def _meta_graph_class() -> type[Message]:
    """Declares the required fields of MetaGraphDef; a map is a list of keys and values."""
    messages = {
        "TensorInfo": [("name", 1, "")],
        "Tensor": [("key", 1, ""), ("value", 2, "TensorInfo")],
        "SignatureDef": [("inputs", 1, "*Tensor"), ("outputs", 2, "*Tensor")],
        "Signature": [("key", 1, ""), ("value", 2, "SignatureDef")],
        "MetaGraphDef": [("signature_def", 5, "*Signature")],
    }
    file = descriptor_pb2.FileDescriptorProto(name="meta_graph", package="c_api", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for message, fields in messages.items():
        added = file.message_type.add(name=message)
        for name, number, kind in fields:
            added.field.add(
                name=name,
                number=number,
                label=field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL,
                type=field.TYPE_MESSAGE if kind else field.TYPE_STRING,
                type_name=f".c_api.{kind.lstrip('*')}" if kind else None,
            )
    return message_factory.GetMessages([file], descriptor_pool.DescriptorPool())[
        "c_api.MetaGraphDef"
    ]


def contents(buffer: "ctypes._Pointer[Buffer]") -> bytes:
    """Copies the contents of a TF_Buffer."""
    return ctypes.string_at(buffer.contents.data, buffer.contents.length)


def answer(model: "Model", signature: str, request: Mapping[str, Mapping]) -> dict:
    """Runs a signature; returns its outputs or the message of its error."""
    try:
        return model.run(signature, request)
    except RuntimeError as error:
        return {"error": str(error)}


def main(site_packages: str, calls: str, answers: str) -> None:
    """Runs the calls of one file and writes the answers to another."""
    tensorflow = TensorFlow(Path(site_packages))
    written = []
    for call in json.loads(Path(calls).read_text()):
        model = Model(tensorflow, call["export_dir"])
        assert model.signatures.keys() == call["requests"].keys()
        written.append({name: answer(model, name, each) for name, each in call["requests"].items()})
    Path(answers).write_text(json.dumps(written))
    imported = [name for name in sys.modules if name.partition(".")[0].startswith("tensorflow")]
    assert not imported, imported


if __name__ == "__main__":
    main(*sys.argv[1:])
