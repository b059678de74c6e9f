"""Writes a model as an ONNX file of standard operators, which onnxruntime 1.17 and later can run.

    inputs   input_ids, input_mask, segment_ids, int64 [B, S]; any B, any S up to
             max_position_embeddings; for the pre-trainer also masked_lm_positions, int64 [B, P]
    outputs  float32, depending on the model: logits [B, C] or [B, S, C]; start_logits and
             end_logits [B, S]; sequence_output [B, S, H] and pooled_output [B, H];
             masked_lm_logits [B, P, V] and next_sentence_logits [B, 2]

B batch, S length, P predictions, H hidden size, N heads, D = H / N, C labels, V vocabulary size.
"""

from collections.abc import Collection
from pathlib import Path

import keras
import numpy as np
import onnx

from keras_bert.checkpoints.weights import weights_of
from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path
from keras_bert.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.models.encoder import BertEncoder
from keras_bert.serving.onnx_graph import (
    SEGMENTS,
    Graph,
    encoder,
    masked_lm,
    pooler,
    tensor_info,
)

_MAX_BYTES = 2**31 - 2**24  # The limit of a protocol buffer, with room left for the nodes.


def write_onnx(
    model: keras.Model, path: Path, *, int8: bool = False, omitted_outputs: Collection[str] = ()
) -> dict[str, dict[str, dict[str, list]]]:
    """Writes a model as an ONNX file, completely or not at all.

    With `int8`, weights are stored as int8: kernels have one scale per column, and the word
    embeddings have a single scale. `omitted_outputs` are the names of outputs that the file does
    not contain: `pooled_output`, `next_sentence_logits`.

    Returns the inputs and outputs of `serving_default`, in the format of `saved_model.describe`.

    Raises:
        InputError: the weights are too large, or the file cannot be written.
    """
    proto = onnx_model(model, tied=not int8, omitted_outputs=omitted_outputs)
    save_onnx(proto, path, int8)
    return {
        "serving_default": {
            "inputs": {value.name: _type_and_shape(value) for value in proto.graph.input},
            "outputs": {value.name: _type_and_shape(value) for value in proto.graph.output},
        }
    }


def save_onnx(proto: onnx.ModelProto, path: Path, int8: bool) -> None:
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
        nodes_to_exclude=[SEGMENTS],  # Segment embeddings: a table of few rows.
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

    `tied` is the argument of `masked_lm`.
    """
    graph = Graph(weights_of(model))
    names = ["input_ids", "input_mask", "segment_ids"]
    hidden = encoder(graph, model.config)
    if isinstance(model, BertPretrainer):
        names.append("masked_lm_positions")
        shapes = {
            "masked_lm_logits": ["batch", "predictions", model.config.vocab_size],
            "next_sentence_logits": ["batch", 2],
        }
        positions = graph.node("Unsqueeze", "masked_lm_positions", graph.constant([-1]))
        masks = graph.node("GatherND", hidden, positions, batch_dims=1)  # [B, P, H]
        masked_lm(graph, masks, model.config, tied, output="masked_lm_logits")
        if "next_sentence_logits" not in omitted_outputs:
            graph.dense(pooler(graph, hidden), "next_sentence", output="next_sentence_logits")
    elif isinstance(model, BertSpanLabeler):
        shapes = {name: ["batch", "length"] for name in ("start_logits", "end_logits")}
        spans = graph.dense(hidden, "span")  # [B, S, 2]
        for index, name in enumerate(shapes):
            graph.node("Gather", spans, graph.constant(index), axis=2, output=name)
    elif isinstance(model, BertClassifier | BertTokenClassifier):
        length = ["length"] if model.per_token else []
        shapes = {"logits": ["batch", *length, model.num_labels]}
        inputs = hidden if model.per_token else pooler(graph, hidden)
        graph.dense(inputs, "classifier", output="logits")
    elif isinstance(model, BertEncoder):
        width = model.config.hidden_size
        shapes = {"sequence_output": ["batch", "length", width], "pooled_output": ["batch", width]}
        graph.node("Identity", hidden, output="sequence_output")
        if "pooled_output" not in omitted_outputs:
            graph.node("Identity", pooler(graph, hidden), output="pooled_output")
    else:
        raise TypeError(f"{type(model).__name__}: expected one of keras_bert.models")
    axes = {"masked_lm_positions": "predictions"}
    return graph.model(
        [tensor_info(name, "int64", ["batch", axes.get(name, "length")]) for name in names],
        [tensor_info(k, "float32", v) for k, v in shapes.items() if k not in omitted_outputs],
    )
