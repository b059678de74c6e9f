"""Builds the ONNX nodes of the encoder and its heads, with standard operators.

B batch, S length, P predictions, H hidden size, N heads, D = H / N, V vocabulary size.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from keras_bert.config import BertConfig

OPSET = 20  # The first opset with Gelu.
SEGMENTS = "segment_embeddings"  # The name of the node with the segment embeddings.
_MASKED_SCORE = -10000.0  # As in models/layers/attention.py.

# config.hidden_act -> operator and attributes.
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}


class Graph:
    """Collects the nodes of a graph, and the weights that the nodes use.

    Tensors are identified by name: methods that add a node take the names of its inputs and return
    the name of its output.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, *inputs: str, output: str | None = None, **how: Any) -> str:
        """Adds a node with one output, and returns the output's name."""
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

    def top_k(self, x: str, count: int, outputs: tuple[str, str]) -> None:
        """Adds the `count` largest values along the last axis, and their int64 indices."""
        how = {"axis": -1, "name": outputs[0]}
        inputs = [x, self.constant([count])]
        self.nodes.append(onnx.helper.make_node("TopK", inputs, list(outputs), **how))

    def initializer(self, name: str, value: np.ndarray) -> str:
        """Adds an array with a name, once, and returns the name."""
        if name not in self.initializers:
            self.initializers[name] = onnx.numpy_helper.from_array(value, name)
        return name

    def dense(self, x: str, path: str, output: str | None = None) -> str:
        """Adds x · kernel + bias with the weights at `path`."""
        product = self.node("MatMul", x, self.weight(f"{path}/kernel"))
        return self.node("Add", product, self.weight(f"{path}/bias"), output=output)

    def layer_norm(self, x: str, path: str, epsilon: float) -> str:
        """Adds layer normalization over the last axis with the weights at `path`."""
        gamma, beta = self.weight(f"{path}/gamma"), self.weight(f"{path}/beta")
        return self.node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)

    def activation(self, x: str, hidden_act: str) -> str:
        """Adds the activation that `config.hidden_act` names."""
        operator, how = _ACTIVATIONS[hidden_act]
        return self.node(operator, x, **how)

    def model(self, inputs: list, outputs: list) -> onnx.ModelProto:
        """Builds the model with these inputs and outputs, which `tensor_info` describes."""
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        graph = onnx.helper.make_graph(
            self.nodes,
            "bert",
            inputs,
            outputs,
            list(self.initializers.values()),
        )
        return onnx.helper.make_model(
            graph,
            producer_name="keras_bert",
            opset_imports=opsets,
            # The oldest version with this opset, so that older runtimes can read it too.
            ir_version=onnx.helper.find_min_ir_version_for(opsets),
        )


def tensor_info(name: str, dtype: str, shape: list) -> onnx.ValueInfoProto:
    """Describes an input or output; a dimension of variable size has a name in `shape`."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def encoder(graph: Graph, config: BertConfig) -> str:
    """Adds the encoder: input_ids, input_mask, segment_ids [B, S] -> hidden states [B, S, H]."""
    hidden = embeddings(graph, config)
    mask = key_mask(graph)
    for index in range(config.num_hidden_layers):
        hidden = block(graph, hidden, mask, f"encoder/layer_{index}", config)
    return hidden


def embeddings(graph: Graph, config: BertConfig) -> str:
    """Adds LN(words + positions + segments): input_ids, segment_ids [B, S] -> [B, S, H]."""
    tables = {
        name: graph.weight(f"encoder/embeddings/{name}_embeddings")
        for name in ("word", "position", "token_type")
    }
    words = graph.node("Gather", tables["word"], "input_ids")
    length = graph.node("Shape", "input_ids", start=1, end=2)
    zero = graph.constant([0])
    positions = graph.node("Slice", tables["position"], zero, length, zero)  # [S, H]
    segments = graph.node("Gather", tables["token_type"], "segment_ids", output=SEGMENTS)
    total = graph.node("Add", graph.node("Add", words, positions), segments)
    return graph.layer_norm(total, "encoder/embeddings/LayerNorm", config.layer_norm_eps)


def key_mask(graph: Graph) -> str:
    """Adds the attention mask: input_mask [B, S] -> [B, 1, 1, S], 0, or -10000 at padding."""
    mask = graph.node("Cast", "input_mask", to=onnx.TensorProto.FLOAT)
    padding = graph.node("Sub", graph.constant(1.0), mask)
    scores = graph.node("Mul", padding, graph.constant(_MASKED_SCORE))
    return graph.node("Unsqueeze", scores, graph.constant([1, 2]))


def block(graph: Graph, x: str, mask: str, path: str, config: BertConfig, queries: str = "") -> str:
    """Adds a transformer layer: attention, then feed-forward, each LN(x + dense(...)).

    `queries`, [B, Q, H], are the hidden states of the Q tokens for which the layer computes
    outputs, [B, Q, H]; by default, these are all tokens, `x`.
    """
    queries = queries or x

    def residual(y: str, x: str, path: str) -> str:
        total = graph.node("Add", graph.dense(y, f"{path}/dense"), x)
        return graph.layer_norm(total, f"{path}/LayerNorm", config.layer_norm_eps)

    attention = f"{path}/attention/self"
    context = _self_attention(graph, (queries, x, x), mask, attention, config)
    x = residual(context, queries, f"{path}/attention/output")
    wide = graph.activation(graph.dense(x, f"{path}/intermediate/dense"), config.hidden_act)
    return residual(wide, x, f"{path}/output")


def _self_attention(
    graph: Graph, sources: tuple[str, str, str], mask: str, path: str, config: BertConfig
) -> str:
    """Adds softmax(QKᵀ/√D + mask)V of each head, concatenated: -> [B, Q, H].

    `sources` are the hidden states for queries [B, Q, H], keys and values [B, S, H].
    """
    heads = config.num_attention_heads
    width = config.hidden_size // heads

    def projected(x: str, name: str, order: list[int]) -> str:
        shape = graph.constant([0, 0, heads, width])  # 0 keeps the size of x.
        split = graph.node("Reshape", graph.dense(x, f"{path}/{name}"), shape, allowzero=0)
        return graph.node("Transpose", split, perm=order)

    query = projected(sources[0], "query", [0, 2, 1, 3])  # [B, N, Q, D]
    key = projected(sources[1], "key", [0, 2, 3, 1])  # [B, N, D, S]
    value = projected(sources[2], "value", [0, 2, 1, 3])
    products = graph.node("MatMul", query, key)  # [B, N, Q, S]
    scores = graph.node("Mul", products, graph.constant(1.0 / math.sqrt(width)))
    probabilities = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
    context = graph.node("MatMul", probabilities, value)
    context = graph.node("Transpose", context, perm=[0, 2, 1, 3])
    return graph.node("Reshape", context, graph.constant([0, 0, heads * width]))


def pooler(graph: Graph, hidden: str) -> str:
    """Adds tanh(W h + b) for the hidden state h of the first token: [B, S, H] -> [B, H]."""
    first = graph.node("Gather", hidden, graph.constant(0), axis=1)
    return graph.node("Tanh", graph.dense(first, "encoder/pooler/dense"))


def masked_lm(graph: Graph, hidden: str, config: BertConfig, tied: bool, output: str = "") -> str:
    """Adds the masked-LM head (layers/heads.py): hidden states [..., H] -> logits [..., V].

    If `tied`, the head multiplies by the transpose of the word embeddings. Otherwise it has its own
    transposed copy of them, because the quantizer quantizes only constants.
    """
    x = graph.activation(graph.dense(hidden, "masked_lm/dense"), config.hidden_act)
    x = graph.layer_norm(x, "masked_lm/LayerNorm", config.layer_norm_eps)
    table = "encoder/embeddings/word_embeddings"
    if tied:
        columns = graph.node("Transpose", graph.weight(table), perm=[1, 0])
    else:
        columns = graph.initializer(f"{table}/transposed", graph.weights[table].T)
    logits = graph.node("MatMul", x, columns)
    return graph.node("Add", logits, graph.weight("masked_lm/output_bias"), output=output or None)
