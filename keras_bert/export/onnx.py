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

import functools
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
    ATTRIBUTE,
    SIGNATURE,
    TEXTS,
    EngineNetwork,
    Rows,
    Run,
    as_tensor,
    different,
    example_inputs,
    saved_outputs,
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
_OUTLIERS = 2  # Channels of a product's input that may be larger than the others in int8.
_MIN_COPIES, _MAX_COPIES = 3, 8  # An input is split if one channel has the first number of copies.

# config.hidden_act -> operator and attributes.
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}


# --- files ---


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
    """Writes a version folder with an ONNX file, whose `int8` is as in `write_onnx`.

    `info` is the content of export.json without "signatures", which this function adds, and `card`
    converts the complete content to the text of README.md. `omitted_outputs` are the outputs that
    the file does not contain: `pooled_output`, `next_sentence_logits`.

    Raises:
        InputError: the model is too large, the graph has other outputs than the model, or the
            folder cannot be written.
    """
    proto = _graph_of(model, tied=not int8, omitted_outputs=omitted_outputs)
    inputs = _example_batch(model, tokenizer)
    expected = model({name: value.astype(np.int32) for name, value in inputs.items()})
    outputs = _run_of(proto)({name: value.astype(np.int64) for name, value in inputs.items()})
    expected = {name: keras.ops.convert_to_numpy(expected[name]) for name in outputs}
    precision = "float32" if model.compute_dtype == "float32" else "bfloat16"
    _check_equal("model.onnx", outputs, expected, precision)
    signature = {
        "inputs": {value.name: _type_and_shape(value) for value in proto.graph.input},
        "outputs": {value.name: _type_and_shape(value) for value in proto.graph.output},
    }
    info = {**info, "signatures": {SIGNATURE: signature}}
    with atomic_path(export_dir) as folder:
        folder.mkdir()
        _save(proto, folder / "model.onnx", int8)
        write_vocab(folder / VOCAB, tokenizer.vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")


def write_engine_files(
    model: BertNetwork, served: ServedTask, compute_type: str, export_dir: Path, int8: bool = False
) -> None:
    """Writes the files of the engines to a version folder; with `int8`, also the int8 file.

    `served` are the signatures of the task in the precision `compute_type`, with the functions for
    engines.

    Raises:
        InputError: a file is too large or cannot be written, or the graph has other outputs than
            the network of the SavedModel.
    """
    spec, folder = served.spec(), export_dir / FOLDER
    proto = _graph_of(model, spec)
    inputs = example_inputs([spec.name for spec in served.steps()[SIGNATURE].specs])
    preprocess = getattr(getattr(served, ATTRIBUTE), f"preprocess_{SIGNATURE}")
    rows = Rows(*(value.numpy() for value in preprocess(*map(as_tensor, inputs.values()))[:3]))
    run = _run_of(proto)
    outputs = EngineNetwork(spec, run, run)(rows)
    _check_equal(FLOAT_FILE, outputs, saved_outputs(served, rows), compute_type)
    _save(proto, folder / FLOAT_FILE, int8=False)
    if int8:
        _save(_graph_of(model, spec, tied=False), folder / INT8_FILE, int8=True)


def write_onnx(model: BertNetwork, path: Path, *, int8: bool = False) -> None:
    """Writes a model as an ONNX file, completely or not at all.

    With `int8`, weights are stored as int8: kernels have one scale per column, and the word
    embeddings have a single scale.

    Raises:
        InputError: the weights are too large, or the file cannot be written.
    """
    _save(_graph_of(model, tied=not int8), path, int8)


def _save(proto: onnx.ModelProto, path: Path, int8: bool) -> None:
    """Saves a graph as a file, completely or not at all; with `int8`, quantizes its weights."""
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


def _example_batch(model: BertNetwork, tokenizer: BertTokenizer) -> dict[str, np.ndarray]:
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
    return inputs


def _check_equal(
    file: str,
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    precision: str,
) -> None:
    floats = {name: value for name, value in expected.items() if value.dtype.kind == "f"}
    problem = different(outputs, floats, precision)
    if problem is not None:
        raise InputError(
            f"{file}: the outputs of the graph are not those of the model: {problem}; nothing was "
            "exported"
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

    _split_outliers(proto)
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


def _split_outliers(proto: onnx.ModelProto) -> None:
    """Splits outlier channels of the inputs of products into equal parts; no output changes.

    onnxruntime quantizes the input of a product with one scale, which the largest value determines.
    In BERT, one or two channels reach three to seven times the values of the others, mostly at
    [CLS], [SEP] and punctuation (Bondarenko et al., "Understanding and Overcoming the Challenges of
    Efficient Transformer Quantization", 2021). Each of n copies of a channel has 1/n of its value,
    and the row of the kernel is repeated n times.
    """
    kernels = {weight.name: weight for weight in proto.graph.initializer}
    products = {
        node.name: node.input[0]
        for node in proto.graph.node
        if node.op_type == "MatMul" and node.input[1] in kernels
    }
    peaks = _peaks(proto, sorted(set(products.values())))
    nodes: list[onnx.NodeProto] = []

    def node(operator: str, inputs: list[str], output: str, **how: Any) -> str:
        nodes.append(onnx.helper.make_node(operator, inputs, [output], name=output, **how))
        return output

    def initializer(name: str, value: np.ndarray) -> str:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        return name

    @functools.cache  # Query, key and value have the same input, which is split once.
    def split(x: str) -> tuple[str, np.ndarray]:
        # Returns the tensor with the copies at the end, and the channels that they copy.
        limit = np.sort(peaks[x])[-1 - _OUTLIERS :][0]
        copies = np.rint(peaks[x] / max(limit, 1e-6))  # The limit is 0 if an input is 0.
        copies = np.clip(copies, 1, _MAX_COPIES).astype(int)
        if copies.max() < _MIN_COPIES:
            return x, np.arange(0)
        channels = np.repeat(np.arange(len(copies)), copies - 1)
        shares = initializer(f"{x}_shares", (1 / copies).astype(np.float32))
        parts = node("Mul", [x, shares], f"{x}_parts")
        indices = initializer(f"{x}_channels", channels)
        copied = node("Gather", [parts, indices], f"{x}_copies", axis=-1)
        return node("Concat", [parts, copied], f"{x}_split", axis=-1), channels

    for operation in proto.graph.node:
        if operation.name in products:
            name = operation.input[1]
            operation.input[0], channels = split(operation.input[0])
            kernel = onnx.numpy_helper.to_array(kernels[name])
            kernel = np.concatenate([kernel, kernel[channels]])
            kernels[name].CopyFrom(onnx.numpy_helper.from_array(kernel, name))
        nodes.append(operation)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _peaks(proto: onnx.ModelProto, names: list[str]) -> dict[str, np.ndarray]:
    """Returns the largest absolute value in each channel of tensors, for random tokens.

    Random tokens show the outliers as well as text does: over three MRPC classifiers, the error of
    the logits was about the same with them and with 64 training examples.
    """
    import onnxruntime

    sizes = {weight.name: weight.dims for weight in proto.graph.initializer}
    vocab_size = sizes["encoder/embeddings/word_embeddings"][0]
    shape = 8, min(32, sizes["encoder/embeddings/position_embeddings"][0])
    values = {
        "input_ids": np.random.default_rng(0).integers(vocab_size, size=shape),
        "input_mask": np.ones(shape),
        "segment_ids": np.zeros(shape),
        "masked_lm_positions": np.broadcast_to(np.arange(shape[1]), shape),
        "mask_places": np.arange(shape[0] * shape[1]),
    }
    inputs = {
        value.name: values[value.name].astype(_type_and_shape(value)[0])
        for value in proto.graph.input
    }
    outputs = [output.name for output in proto.graph.output]
    proto.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in outputs
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # Errors.
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    tensors = session.run(names, inputs)
    del proto.graph.output[len(outputs) :]
    peaks = [np.abs(x).reshape(-1, x.shape[-1]).max(0) for x in tensors]
    return dict(zip(names, peaks, strict=True))


# --- the graph ---


class _Graph:
    """Collects the nodes of a graph, the weights that the nodes use, and inputs and outputs.

    Tensors are identified by name: methods that add a node take the names of its inputs and return
    the name of its output.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: str, shape: list) -> None:
        """Adds an input; a dimension of variable size has a name in `shape`."""
        self.inputs.append(_tensor_info(name, dtype, shape))

    def output(self, name: str, shape: list, dtype: str = "float32") -> None:
        """Makes a tensor an output."""
        self.outputs.append(_tensor_info(name, dtype, shape))

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

    def first_token(self, hidden: str) -> str:
        """Adds the selection of the hidden state of [CLS]: [B, S, H] -> [B, 1, H]."""
        start, end = self.constant([0]), self.constant([1])
        return self.node("Slice", hidden, start, end, end)

    def model(self) -> onnx.ModelProto:
        """Builds the model."""
        opsets = [onnx.helper.make_opsetid("", _OPSET)]
        initializers = list(self.initializers.values())
        graph = onnx.helper.make_graph(self.nodes, "bert", self.inputs, self.outputs, initializers)
        return onnx.helper.make_model(
            graph,
            producer_name="keras_bert",
            opset_imports=opsets,
            # The oldest version with this opset, so that older runtimes can read it too.
            ir_version=onnx.helper.find_min_ir_version_for(opsets),
        )


def _tensor_info(name: str, dtype: str, shape: list) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def _graph_of(
    model: BertNetwork,
    spec: NetworkSpec | None = None,
    *,
    tied: bool = True,
    omitted_outputs: Collection[str] = (),
) -> onnx.ModelProto:
    """Converts a model to an ONNX graph; with `spec`, to the network of its task for engines.

    `tied` is the argument of `_masked_lm`. The outputs in `omitted_outputs` are not computed.
    """
    graph, config = _Graph(weights_of(model)), model.config
    kind = "int64" if spec is None else "int32"
    for name in ("input_ids", "input_mask", "segment_ids"):
        graph.input(name, kind, ["batch", "length"])
    pools_first = model.heads and not model.per_token and "masked_lm" not in model.heads
    hidden = _encoder(graph, config, first_only=bool(spec and pools_first))
    if "masked_lm" in model.heads and spec is not None:
        graph.input("mask_places", kind, ["masks"])
        _best_tokens(graph, hidden, config, spec, tied)
    elif "masked_lm" in model.heads:
        graph.input("masked_lm_positions", kind, ["batch", "predictions"])
        positions = graph.node("Unsqueeze", "masked_lm_positions", graph.constant([-1]))
        masks = graph.node("GatherND", hidden, positions, batch_dims=1)  # [B, P, H]
        _masked_lm(graph, masks, config, tied, output="masked_lm_logits")
        graph.output("masked_lm_logits", ["batch", "predictions", config.vocab_size])
        if "next_sentence_logits" not in omitted_outputs:
            graph.dense(_pooler(graph, hidden), "next_sentence", output="next_sentence_logits")
            graph.output("next_sentence_logits", ["batch", 2])
    elif model.heads:
        _linear_head(graph, model, hidden)
    elif spec is not None:
        _vectors(graph, hidden, config, spec.pooled)
    else:
        graph.node("Identity", hidden, output="sequence_output")
        graph.output("sequence_output", ["batch", "length", config.hidden_size])
        if "pooled_output" not in omitted_outputs:
            graph.node("Identity", _pooler(graph, hidden), output="pooled_output")
            graph.output("pooled_output", ["batch", config.hidden_size])
    return graph.model()


def _encoder(graph: _Graph, config: BertConfig, first_only: bool) -> str:
    """Adds the encoder: input_ids, input_mask, segment_ids [B, S] -> hidden states [B, S, H].

    With `first_only`, the last layer is computed for [CLS] only: -> [B, 1, H].
    """
    hidden, mask = _embeddings(graph, config), _key_mask(graph)
    for index in range(config.num_hidden_layers):
        queries = hidden
        if first_only and index == config.num_hidden_layers - 1:
            queries = graph.first_token(hidden)
        hidden = _block(graph, hidden, mask, f"encoder/layer_{index}", config, queries)
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


def _block(graph: _Graph, x: str, mask: str, path: str, config: BertConfig, queries: str) -> str:
    """Adds a transformer layer: attention, then feed-forward, each LN(x + dense(...)).

    `queries`, [B, Q, H], are the hidden states of the Q tokens for which the layer computes
    outputs, [B, Q, H].
    """

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
    """Adds the masked-LM head (models/heads.py): hidden states [..., H] -> logits [..., V].

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


def _linear_head(graph: _Graph, model: BertNetwork, hidden: str) -> None:
    """Adds the head of one linear layer; `hidden` is [B, S, H]."""
    [head], shape = model.heads, ["batch", *["length"] * model.per_token]
    inputs = hidden if model.per_token else _pooler(graph, hidden)
    if len(model.output_names) == 1:
        [name] = model.output_names
        graph.dense(inputs, head, output=name)
        graph.output(name, [*shape, model.num_labels])
        return
    logits = graph.dense(inputs, head)
    for column, name in enumerate(model.output_names):
        graph.node("Gather", logits, graph.constant(column), axis=2, output=name)
        graph.output(name, shape)


def _best_tokens(
    graph: _Graph, hidden: str, config: BertConfig, spec: NetworkSpec, tied: bool
) -> None:
    """Adds the probabilities and ids of the best tokens of each mask, [P, K] each."""
    width = graph.constant([-1, config.hidden_size])
    tokens = graph.node("Reshape", hidden, width)  # [B * S, H]
    masks = graph.node("Gather", tokens, "mask_places", axis=0)
    probabilities = graph.node("Softmax", _masked_lm(graph, masks, config, tied), axis=-1)
    inputs, outputs = [probabilities, graph.constant([spec.top_k])], ["scores", "best_ids"]
    graph.nodes.append(onnx.helper.make_node("TopK", inputs, outputs, axis=-1, name="scores"))
    graph.node("Cast", "best_ids", to=onnx.TensorProto.INT32, output="token_ids")
    graph.output("scores", ["masks", spec.top_k])
    graph.output("token_ids", ["masks", spec.top_k], "int32")


def _vectors(graph: _Graph, hidden: str, config: BertConfig, pooled: bool) -> None:
    """Adds the [CLS] vector, the mean over tokens and the pooled output, [B, 2 or 3, H]."""
    mask = graph.node("Cast", "input_mask", to=onnx.TensorProto.FLOAT)
    mask = graph.node("Unsqueeze", mask, graph.constant([-1]))  # [B, S, 1]
    total = graph.node("ReduceSum", graph.node("Mul", hidden, mask), graph.constant([1]))
    mean = graph.node("Div", total, graph.node("ReduceSum", mask, graph.constant([1])))
    vectors = [graph.first_token(hidden), mean]
    if pooled:
        vectors.append(graph.node("Unsqueeze", _pooler(graph, hidden), graph.constant([1])))
    graph.node("Concat", *vectors, axis=1, output="vectors")
    graph.output("vectors", ["batch", len(vectors), config.hidden_size])
