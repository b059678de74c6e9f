"""Writes a model as an ONNX file of standard operators, which onnxruntime 1.17 and later can run.

Inputs and outputs have the names and shapes of those in litert_format.py, but inputs are int64.

B batch, S length, P predictions, H hidden size, N heads, D = H / N, C labels, V vocabulary size.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert.checkpoints.weights import weights_of
from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path
from keras_bert.config import BertConfig
from keras_bert.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.models.encoder import BertEncoder

try:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata
except ImportError as error:
    raise InputError(
        f"{error.name} is not installed; ONNX files need it: "
        "pip install 'keras-bert-pipeline[onnx]'"
    ) from None

OPSET = 20  # The first opset with Gelu.
_MASKED_SCORE = -10000.0  # As in models/layers/attention.py.
_MAX_BYTES = 2**31 - 2**24  # The limit of a protocol buffer, with room left for the nodes.
_SEGMENTS = "segment_embeddings"  # The name of the node with the segment embeddings.

# config.hidden_act -> operator and attributes.
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}


def write_onnx(
    model: keras.Model, path: Path, *, int8: bool = False, omitted_outputs: Collection[str] = ()
) -> dict[str, dict[str, dict[str, list]]]:
    """Writes a model as an ONNX file, completely or not at all.

    Arguments, return value and errors are those of `litert_format.write_litert`. With `int8`,
    kernels have one scale per column, and the word embeddings have a single scale.
    """
    proto = onnx_model(model, tied=not int8, omitted_outputs=omitted_outputs)
    size = sum(len(weight.raw_data) for weight in proto.graph.initializer)
    if size > _MAX_BYTES:
        raise InputError(
            f"{path}: the weights take {size / 2**30:.1f} GiB; expected at most 2 GiB, the limit "
            "of an ONNX file"
        )
    with atomic_path(path) as partial:
        if int8:
            _quantize(proto, partial)
        else:
            onnx.save_model(proto, partial)
    return {
        "serving_default": {
            "inputs": {value.name: _type_and_shape(value) for value in proto.graph.input},
            "outputs": {value.name: _type_and_shape(value) for value in proto.graph.output},
        }
    }


def _type_and_shape(value: onnx.ValueInfoProto) -> list:
    kind = value.type.tensor_type
    name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    # A dimension of variable size has a name.
    return [name, [-1 if size.dim_param else size.dim_value for size in kind.shape.dim]]


def _quantize(proto: onnx.ModelProto, path: Path) -> None:
    add_pre_process_metadata(proto)  # Otherwise the quantizer asks for pre-processing.
    quantize_dynamic(
        proto,
        path,
        per_channel=True,
        weight_type=QuantType.QInt8,
        # Use 7-bit weights: processors without VNNI add two products in 16 bits, and with 8-bit
        # weights the sum would overflow.
        reduce_range=True,
        nodes_to_exclude=[_SEGMENTS],  # Segment embeddings: a table of few rows.
    )
    quantized = onnx.load_model(path)
    # The quantizer adds the shapes of all tensors. With them, onnxruntime 1.31 fuses residual sums
    # into SkipLayerNormalization, which is slower than the separate ops: 4.5 ms, not 3.3 ms (6
    # layers, hidden size 384, 64 tokens, one thread).
    del quantized.graph.value_info[:]
    onnx.save_model(quantized, path)


def onnx_model(
    model: keras.Model, tied: bool = True, omitted_outputs: Collection[str] = ()
) -> onnx.ModelProto:
    """Converts a model to an ONNX graph, without the outputs named in `omitted_outputs`.

    If `tied`, the masked-LM head multiplies by the transpose of the word embeddings. Otherwise the
    head has its own transposed copy of them, because the quantizer quantizes only constants.
    """
    graph = _Graph(weights_of(model))
    names = ["input_ids", "input_mask", "segment_ids"]
    hidden = _encoder(graph, model.config)
    if isinstance(model, BertPretrainer):
        names.append("masked_lm_positions")
        shapes = {
            "masked_lm_logits": ["batch", "predictions", model.config.vocab_size],
            "next_sentence_logits": ["batch", 2],
        }
        _masked_lm(graph, hidden, model.config, tied)
        if "next_sentence_logits" not in omitted_outputs:
            graph.dense(_pooler(graph, hidden), "next_sentence", output="next_sentence_logits")
    elif isinstance(model, BertSpanLabeler):
        shapes = {name: ["batch", "length"] for name in ("start_logits", "end_logits")}
        spans = graph.dense(hidden, "span")  # [B, S, 2]
        for index, name in enumerate(shapes):
            graph.node("Gather", spans, graph.constant(index), axis=2, output=name)
    elif isinstance(model, BertClassifier | BertTokenClassifier):
        length = ["length"] if model.per_token else []
        shapes = {"logits": ["batch", *length, model.num_labels]}
        inputs = hidden if model.per_token else _pooler(graph, hidden)
        graph.dense(inputs, "classifier", output="logits")
    elif isinstance(model, BertEncoder):
        width = model.config.hidden_size
        shapes = {"sequence_output": ["batch", "length", width], "pooled_output": ["batch", width]}
        graph.node("Identity", hidden, output="sequence_output")
        if "pooled_output" not in omitted_outputs:
            graph.node("Identity", _pooler(graph, hidden), output="pooled_output")
    else:
        raise TypeError(f"{type(model).__name__}: expected one of keras_bert.models")
    return graph.model(names, {k: shape for k, shape in shapes.items() if k not in omitted_outputs})


class _Graph:
    """Collects the nodes of a graph, and the weights that the nodes use.

    Tensors are identified by name: methods that add a node take the names of its inputs and return
    the name of its output.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, *inputs: str, output: str | None = None, **how: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [output], name=output, **how))
        return output

    def weight(self, path: str) -> str:
        """Adds the model's variable with this path, and returns its name in the graph."""
        return self.initializer(path, self.weights[path])

    def constant(self, value: Any) -> str:
        """Adds a constant, int64 for integers and float32 otherwise, and returns its name."""
        value = np.asarray(value)
        value = value.astype(np.int64 if value.dtype.kind == "i" else np.float32)
        return self.initializer(f"constant_{value.dtype}_{value.tolist()}", value)

    def initializer(self, name: str, value: np.ndarray) -> str:
        if name not in self.initializers:
            self.initializers[name] = onnx.numpy_helper.from_array(value, name)
        return name

    def dense(self, x: str, path: str, output: str | None = None) -> str:
        product = self.node("MatMul", x, self.weight(f"{path}/kernel"))
        return self.node("Add", product, self.weight(f"{path}/bias"), output=output)

    def layer_norm(self, x: str, path: str, epsilon: float) -> str:
        gamma, beta = self.weight(f"{path}/gamma"), self.weight(f"{path}/beta")
        return self.node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)

    def activation(self, x: str, hidden_act: str) -> str:
        operator, how = _ACTIVATIONS[hidden_act]
        return self.node(operator, x, **how)

    def model(self, inputs: list[str], outputs: Mapping[str, list]) -> onnx.ModelProto:
        """Builds the model: int64 inputs [B, S] or [B, P], float32 outputs {name: shape}."""
        value = onnx.helper.make_tensor_value_info
        axes = {"masked_lm_positions": "predictions"}
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        graph = onnx.helper.make_graph(
            self.nodes,
            "bert",
            [
                value(name, onnx.TensorProto.INT64, ["batch", axes.get(name, "length")])
                for name in inputs
            ],
            [value(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            list(self.initializers.values()),
        )
        return onnx.helper.make_model(
            graph,
            producer_name="keras_bert",
            opset_imports=opsets,
            # The oldest version with this opset, so that older runtimes can read it too.
            ir_version=onnx.helper.find_min_ir_version_for(opsets),
        )


def _encoder(graph: _Graph, config: BertConfig) -> str:
    """Adds the encoder: input_ids, input_mask, segment_ids [B, S] -> hidden states [B, S, H]."""
    hidden = _embeddings(graph, config)
    mask = _key_mask(graph)
    for index in range(config.num_hidden_layers):
        hidden = _block(graph, hidden, mask, f"encoder/layer_{index}", config)
    return hidden


def _embeddings(graph: _Graph, config: BertConfig) -> str:
    """Adds LN(words + positions + segments): input_ids, segment_ids [B, S] -> [B, S, H]."""
    tables = {
        name: graph.weight(f"encoder/embeddings/{name}_embeddings")
        for name in ("word", "position", "token_type")
    }
    words = graph.node("Gather", tables["word"], "input_ids")
    length = graph.node("Shape", "input_ids", start=1, end=2)
    zero = graph.constant([0])
    positions = graph.node("Slice", tables["position"], zero, length, zero)  # [S, H]
    segments = graph.node("Gather", tables["token_type"], "segment_ids", output=_SEGMENTS)
    total = graph.node("Add", graph.node("Add", words, positions), segments)
    return graph.layer_norm(total, "encoder/embeddings/LayerNorm", config.layer_norm_eps)


def _key_mask(graph: _Graph) -> str:
    """Adds the attention mask: input_mask [B, S] -> [B, 1, 1, S], 0, or -10000 at padding."""
    mask = graph.node("Cast", "input_mask", to=onnx.TensorProto.FLOAT)
    padding = graph.node("Sub", graph.constant(1.0), mask)
    scores = graph.node("Mul", padding, graph.constant(_MASKED_SCORE))
    return graph.node("Unsqueeze", scores, graph.constant([1, 2]))


def _block(graph: _Graph, x: str, mask: str, path: str, config: BertConfig) -> str:
    """Adds a transformer layer: attention, then feed-forward, each LN(x + dense(...))."""

    def residual(y: str, x: str, path: str) -> str:
        total = graph.node("Add", graph.dense(y, f"{path}/dense"), x)
        return graph.layer_norm(total, f"{path}/LayerNorm", config.layer_norm_eps)

    context = _self_attention(graph, x, mask, f"{path}/attention/self", config)
    x = residual(context, x, f"{path}/attention/output")
    wide = graph.activation(graph.dense(x, f"{path}/intermediate/dense"), config.hidden_act)
    return residual(wide, x, f"{path}/output")


def _self_attention(graph: _Graph, x: str, mask: str, path: str, config: BertConfig) -> str:
    """Adds softmax(QKᵀ/√D + mask)V of each head, concatenated: [B, S, H] -> [B, S, H]."""
    heads = config.num_attention_heads
    width = config.hidden_size // heads

    def projected(name: str, order: list[int]) -> str:
        shape = graph.constant([0, 0, heads, width])  # 0 keeps the size of x.
        split = graph.node("Reshape", graph.dense(x, f"{path}/{name}"), shape, allowzero=0)
        return graph.node("Transpose", split, perm=order)

    query = projected("query", [0, 2, 1, 3])  # [B, N, S, D]
    key = projected("key", [0, 2, 3, 1])  # [B, N, D, S]
    value = projected("value", [0, 2, 1, 3])
    products = graph.node("MatMul", query, key)  # [B, N, S, S]
    scores = graph.node("Mul", products, graph.constant(1.0 / math.sqrt(width)))
    probabilities = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
    context = graph.node("MatMul", probabilities, value)
    context = graph.node("Transpose", context, perm=[0, 2, 1, 3])
    return graph.node("Reshape", context, graph.constant([0, 0, heads * width]))


def _pooler(graph: _Graph, hidden: str) -> str:
    """Adds tanh(W h + b) for the hidden state h of the first token: [B, S, H] -> [B, H]."""
    first = graph.node("Gather", hidden, graph.constant(0), axis=1)
    return graph.node("Tanh", graph.dense(first, "encoder/pooler/dense"))


def _masked_lm(graph: _Graph, hidden: str, config: BertConfig, tied: bool) -> None:
    """Adds the masked-LM head (layers/heads.py): [B, S, H], [B, P] -> logits [B, P, V]."""
    positions = graph.node("Unsqueeze", "masked_lm_positions", graph.constant([-1]))
    x = graph.node("GatherND", hidden, positions, batch_dims=1)  # [B, P, H]
    x = graph.activation(graph.dense(x, "masked_lm/dense"), config.hidden_act)
    x = graph.layer_norm(x, "masked_lm/LayerNorm", config.layer_norm_eps)
    table = "encoder/embeddings/word_embeddings"
    if tied:
        columns = graph.node("Transpose", graph.weight(table), perm=[1, 0])
    else:
        columns = graph.initializer(f"{table}/transposed", graph.weights[table].T)
    logits = graph.node("MatMul", x, columns)
    graph.node("Add", logits, graph.weight("masked_lm/output_bias"), output="masked_lm_logits")
