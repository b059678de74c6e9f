"""Writes a model as ONNX files of standard operators, which onnxruntime 1.17 and later can run.

`--format=onnx` writes a version folder with the whole network:

    model.onnx      from token ids to the model's outputs
    vocab.txt       the tokens in the order of their ids
    export.json     the task, its labels, and the model's inputs and outputs
    README.md       the model card

    inputs   input_ids, input_mask, segment_ids, int64 [B, S]; any B, any S up to
             max_position_embeddings; for the pre-trainer also masked_lm_positions, int64 [B, P]
    outputs  float32, depending on the model: logits [B, C] or [B, S, C]; start_logits and
             end_logits [B, S]; sequence_output [B, S, H] and pooled_output [B, H];
             masked_lm_logits [B, P, V] and next_sentence_logits [B, 2]

Each graph is computed for some texts with the package onnx, in float32, before it is written; the
export fails if its outputs are not those of the model.

The files of the engines, beside a SavedModel, compute only what the task decodes: a classifier's
last layer is computed for [CLS] alone, masked tokens are reduced to their best tokens, and an
encoder to its vectors. The same file serves float32 and bfloat16; int8 has its own.

    input_ids, segment_ids, input_mask    int32 [B, S]
    mask_places                           int32 [P], the masks as indices into B * S; fill-mask only

B batch, S length, P predictions, K tokens per mask, H hidden size, N heads, D = H / N, C labels,
V vocabulary size.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnx.reference

from keras_bert.checkpoints.tokenizer_files import VOCAB, write_vocab
from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.engine_network import (
    SIGNATURE,
    TEXTS,
    Run,
    difference_of_graph,
    different_outputs,
)
from keras_bert.export.engines import FLOAT_FILE, FOLDER, INT8_FILE, NetworkSpec
from keras_bert.export.saved_model import ServedTask
from keras_bert.export.version_folders import CARD, INFO
from keras_bert.files import atomic_path, write_json
from keras_bert.models.encoder import BertNetwork
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer

_MAX_BYTES = 2**31 - 2**24  # The limit of a protocol buffer, with room left for the nodes.
_OPSET = 20  # The first opset with Gelu.
_SEGMENTS = "segment_embeddings"  # The name of the node with the segment embeddings.
_MASKED_SCORE = -10000.0  # As in models/attention.py.

# config.hidden_act -> operator and attributes.
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}


def write_onnx_folder(
    model: BertNetwork,
    tokenizer: BertTokenizer,
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
    *,
    int8: bool = False,
    omitted_outputs: Collection[str] = (),
) -> None:
    """Writes a version folder with an ONNX file.

    Args:
        model: the network.
        tokenizer: the tokenizer of the model.
        export_dir: the version folder.
        info: the content of export.json without "signatures", which this function adds.
        card: converts the complete content of export.json to the text of README.md.
        int8: the argument of `write_onnx`.
        omitted_outputs: the argument of `write_onnx`.

    Raises:
        InputError: the model is too large, the graph has other outputs than the model, or the
            folder cannot be written.
    """
    with atomic_path(export_dir) as folder:
        folder.mkdir()
        signatures = write_onnx(
            model,
            folder / "model.onnx",
            int8=int8,
            omitted_outputs=omitted_outputs,
            tokenizer=tokenizer,
        )
        info = {**info, "signatures": signatures}
        write_vocab(folder / VOCAB, tokenizer.vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")


def write_engine_files(
    model: BertNetwork, served: ServedTask, compute_type: str, export_dir: Path, int8: bool = False
) -> None:
    """Writes the files of the engines to a version folder; with `int8`, also the int8 file.

    Args:
        model: the network of the task.
        served: the signatures of the task, and the functions for engines.
        compute_type: the precision of `served`.
        export_dir: the version folder.
        int8: whether to write the int8 file.

    Raises:
        InputError: a file is too large or cannot be written, or the graph has other outputs than
            the network of the SavedModel.
    """
    spec = served.spec()
    proto = _task_model(model, spec)
    inputs = [spec.name for spec in served.steps()[SIGNATURE].specs]
    problem = difference_of_graph(served, inputs, spec, _run_of(proto), compute_type)
    _check_equal(export_dir / FOLDER / FLOAT_FILE, problem)
    _save(proto, export_dir / FOLDER / FLOAT_FILE, int8=False)
    if int8:
        _save(_task_model(model, spec, tied=False), export_dir / FOLDER / INT8_FILE, int8=True)


def write_onnx(
    model: BertNetwork,
    path: Path,
    *,
    int8: bool = False,
    omitted_outputs: Collection[str] = (),
    tokenizer: BertTokenizer | None = None,
) -> dict[str, dict[str, dict[str, list]]]:
    """Writes a model as an ONNX file, completely or not at all.

    With `int8`, weights are stored as int8: kernels have one scale per column, and the word
    embeddings have a single scale. `omitted_outputs` are the names of outputs that the file does
    not contain: `pooled_output`, `next_sentence_logits`. With a `tokenizer`, the outputs for some
    texts are compared with those of the model.

    Returns the inputs and outputs of `serving_default`, in the format of `saved_model.describe`.

    Raises:
        InputError: the weights are too large, the outputs differ, or the file cannot be written.
    """
    proto = _whole_model(model, tied=not int8, omitted_outputs=omitted_outputs)
    if tokenizer is not None:
        _check_equal(path, _difference_of_model(proto, model, tokenizer))
    _save(proto, path, int8)
    return {
        "serving_default": {
            "inputs": {value.name: _type_and_shape(value) for value in proto.graph.input},
            "outputs": {value.name: _type_and_shape(value) for value in proto.graph.output},
        }
    }


def _save(proto: onnx.ModelProto, path: Path, int8: bool) -> None:
    """Saves a graph as a file, completely or not at all; with `int8`, quantizes its weights.

    Raises:
        InputError: the weights are too large, or the file cannot be written.
    """
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


def _run_of(proto: onnx.ModelProto) -> Run:
    """Returns a function that computes the outputs of a graph with the package onnx."""
    evaluator = onnx.reference.ReferenceEvaluator(proto)
    return lambda inputs: dict(
        zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True)
    )


def _difference_of_model(
    proto: onnx.ModelProto, model: BertNetwork, tokenizer: BertTokenizer
) -> str | None:
    """Compares a graph with its model for some texts; returns the first difference, or None."""
    segments = combine_segments(
        tokenizer.tokenize(TEXTS),
        max_seq_length=min(64, model.config.max_position_embeddings),
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    ids = segments.input_ids.to_tensor(tokenizer.pad_token_id).numpy()
    mask = np.arange(ids.shape[1]) < segments.input_ids.row_lengths().numpy()[:, np.newaxis]
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}
    if "masked_lm_positions" in model.required_inputs:
        inputs["masked_lm_positions"] = np.ones([len(ids), 1])
    expected = model({name: value.astype(np.int32) for name, value in inputs.items()})
    outputs = _run_of(proto)({name: value.astype(np.int64) for name, value in inputs.items()})
    return different_outputs(
        NetworkSpec(dict.fromkeys(outputs, "row")),
        [*outputs.values()],
        [keras.ops.convert_to_numpy(expected[name]) for name in outputs],
        "float32" if model.compute_dtype == "float32" else "bfloat16",
    )


def _check_equal(path: Path, problem: str | None) -> None:
    if problem is not None:
        raise InputError(
            f"{path.name}: the outputs of the graph are not those of the model: {problem}; nothing "
            "was exported"
        )


def _type_and_shape(value: onnx.ValueInfoProto) -> list:
    kind = value.type.tensor_type
    name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    # A dimension of variable size has a name.
    return [name, [-1 if size.dim_param else size.dim_value for size in kind.shape.dim]]


def _quantize(proto: onnx.ModelProto, path: Path) -> None:
    # Imported here, because only int8 files need the package onnxruntime.
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

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
        opsets = [onnx.helper.make_opsetid("", _OPSET)]
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


def _tensor_info(name: str, dtype: str, shape: list) -> onnx.ValueInfoProto:
    """Describes an input or output; a dimension of variable size has a name in `shape`."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, shape)


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


def _block(
    graph: _Graph, x: str, mask: str, path: str, config: BertConfig, queries: str = ""
) -> str:
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
    graph: _Graph, sources: tuple[str, str, str], mask: str, path: str, config: BertConfig
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


def _pooler(graph: _Graph, hidden: str) -> str:
    """Adds tanh(W h + b) for the hidden state h of the first token: [B, S, H] -> [B, H]."""
    first = graph.node("Gather", hidden, graph.constant(0), axis=1)
    return graph.node("Tanh", graph.dense(first, "encoder/pooler/dense"))


def _masked_lm(graph: _Graph, hidden: str, config: BertConfig, tied: bool, output: str = "") -> str:
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


def _whole_model(
    model: BertNetwork, tied: bool = True, omitted_outputs: Collection[str] = ()
) -> onnx.ModelProto:
    """Converts a model to an ONNX graph, without the outputs named in `omitted_outputs`.

    `tied` is the argument of `_masked_lm`.
    """
    graph = _Graph(weights_of(model))
    names = ["input_ids", "input_mask", "segment_ids"]
    hidden = _encoder(graph, model.config)
    if "masked_lm" in model.heads:
        names.append("masked_lm_positions")
        shapes = {
            "masked_lm_logits": ["batch", "predictions", model.config.vocab_size],
            "next_sentence_logits": ["batch", 2],
        }
        positions = graph.node("Unsqueeze", "masked_lm_positions", graph.constant([-1]))
        masks = graph.node("GatherND", hidden, positions, batch_dims=1)  # [B, P, H]
        _masked_lm(graph, masks, model.config, tied, output="masked_lm_logits")
        if "next_sentence_logits" not in omitted_outputs:
            graph.dense(_pooler(graph, hidden), "next_sentence", output="next_sentence_logits")
    elif model.heads:
        shapes = _linear_head(graph, model, hidden)
    else:
        width = model.config.hidden_size
        shapes = {"sequence_output": ["batch", "length", width], "pooled_output": ["batch", width]}
        graph.node("Identity", hidden, output="sequence_output")
        if "pooled_output" not in omitted_outputs:
            graph.node("Identity", _pooler(graph, hidden), output="pooled_output")
    axes = {"masked_lm_positions": "predictions"}
    return graph.model(
        [_tensor_info(name, "int64", ["batch", axes.get(name, "length")]) for name in names],
        [_tensor_info(k, "float32", v) for k, v in shapes.items() if k not in omitted_outputs],
    )


def _linear_head(graph: _Graph, model: BertNetwork, hidden: str) -> dict[str, list]:
    """Adds the head of one linear layer, and returns {output: shape}; `hidden` is [B, S, H]."""
    [head], shape = model.heads, ["batch", *["length"] * model.per_token]
    inputs = hidden if model.per_token else _pooler(graph, hidden)
    if len(model.output_names) == 1:
        [name] = model.output_names
        graph.dense(inputs, head, output=name)
        return {name: [*shape, model.num_labels]}
    logits = graph.dense(inputs, head)
    for column, name in enumerate(model.output_names):
        graph.node("Gather", logits, graph.constant(column), axis=2, output=name)
    return dict.fromkeys(model.output_names, shape)


def _task_model(model: BertNetwork, spec: NetworkSpec, tied: bool = True) -> onnx.ModelProto:
    """Converts a model to the graph of its task; `tied` is the argument of `_masked_lm`."""
    graph = _Graph(weights_of(model))
    inputs = [
        _tensor_info(name, "int32", ["batch", "length"])
        for name in ("input_ids", "segment_ids", "input_mask")
    ]
    if "masked_lm" in model.heads:
        inputs.append(_tensor_info("mask_places", "int32", ["masks"]))
        outputs = _best_tokens(graph, model.config, spec, tied)
    elif model.heads:
        last = _encoder if model.per_token else _first_token
        shapes = _linear_head(graph, model, last(graph, model.config))
        outputs = [_tensor_info(name, "float32", shape) for name, shape in shapes.items()]
    else:
        outputs = _vectors(graph, model.config, spec)
    return graph.model(inputs, outputs)


def _first_token(graph: _Graph, config: BertConfig) -> str:
    """Adds the encoder, whose last layer is computed for [CLS] only: -> [B, 1, H]."""
    hidden, mask = _embeddings(graph, config), _key_mask(graph)
    *paths, last = (f"encoder/layer_{index}" for index in range(config.num_hidden_layers))
    for path in paths:
        hidden = _block(graph, hidden, mask, path, config)
    start, end = graph.constant([0]), graph.constant([1])
    first = graph.node("Slice", hidden, start, end, end)
    return _block(graph, hidden, mask, last, config, queries=first)


def _best_tokens(graph: _Graph, config: BertConfig, spec: NetworkSpec, tied: bool) -> list:
    """Adds the probabilities and ids of the best tokens of each mask, [P, K] each."""
    width = graph.constant([-1, config.hidden_size])
    tokens = graph.node("Reshape", _encoder(graph, config), width)  # [B * S, H]
    masks = graph.node("Gather", tokens, "mask_places", axis=0)
    probabilities = graph.node("Softmax", _masked_lm(graph, masks, config, tied), axis=-1)
    graph.top_k(probabilities, spec.top_k, ("scores", "best_ids"))
    graph.node("Cast", "best_ids", to=onnx.TensorProto.INT32, output="token_ids")
    shape = ["masks", spec.top_k]
    return [_tensor_info("scores", "float32", shape), _tensor_info("token_ids", "int32", shape)]


def _vectors(graph: _Graph, config: BertConfig, spec: NetworkSpec) -> list:
    """Adds the [CLS] vector, the mean over tokens and the pooled output, [B, 2 or 3, H]."""
    hidden = _encoder(graph, config)
    start, end = graph.constant([0]), graph.constant([1])
    parts = [graph.node("Slice", hidden, start, end, end)]  # [B, 1, H]
    mask = graph.node("Cast", "input_mask", to=onnx.TensorProto.FLOAT)
    mask = graph.node("Unsqueeze", mask, graph.constant([-1]))  # [B, S, 1]
    total = graph.node("ReduceSum", graph.node("Mul", hidden, mask), graph.constant([1]))
    parts.append(graph.node("Div", total, graph.node("ReduceSum", mask, graph.constant([1]))))
    if spec.pooled:
        parts.append(graph.node("Unsqueeze", _pooler(graph, hidden), graph.constant([1])))
    graph.node("Concat", *parts, axis=1, output="vectors")
    return [_tensor_info("vectors", "float32", ["batch", len(parts), config.hidden_size])]
