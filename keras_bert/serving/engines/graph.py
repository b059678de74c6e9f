"""Writes the network of a task as ONNX files for the engines.

Unlike the file of `--format=onnx`, the graph computes only what the task decodes: a classifier's
last layer is computed for [CLS] alone, masked tokens are reduced to their best tokens, and an
encoder to its vectors. The same file serves float32 and bfloat16; int8 has its own.

    input_ids, segment_ids, input_mask    int32 [B, S]
    mask_places                           int32 [P], the masks as indices into B * S; fill-mask only

B rows, S length of the longest row, P masks, K tokens per mask, H hidden size, C labels.
"""

from pathlib import Path

import keras
import onnx

from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.serving.engines.spec import FLOAT_FILE, FOLDER, INT8_FILE, NetworkSpec
from keras_bert.serving.onnx_format import save_onnx
from keras_bert.serving.onnx_graph import (
    Graph,
    block,
    embeddings,
    encoder,
    key_mask,
    masked_lm,
    pooler,
    tensor_info,
)

_BATCH = ["batch", "length"]


def write_engine_files(
    model: keras.Model, spec: NetworkSpec, export_dir: Path, int8: bool = False
) -> None:
    """Writes the files of the engines to a version folder; with `int8`, also the int8 file.

    Raises:
        InputError: a file is too large or cannot be written.
    """
    for name in [FLOAT_FILE, INT8_FILE] if int8 else [FLOAT_FILE]:
        is_int8 = name == INT8_FILE
        save_onnx(network_model(model, spec, not is_int8), export_dir / FOLDER / name, is_int8)


def network_model(model: keras.Model, spec: NetworkSpec, tied: bool = True) -> onnx.ModelProto:
    """Converts a model to the graph of its task; `tied` is the argument of `masked_lm`."""
    graph = Graph(weights_of(model))
    inputs = [
        tensor_info(name, "int32", _BATCH) for name in ("input_ids", "segment_ids", "input_mask")
    ]
    if isinstance(model, BertPretrainer):
        inputs.append(tensor_info("mask_places", "int32", ["masks"]))
        outputs = _best_tokens(graph, model.config, spec, tied)
    elif isinstance(model, BertSpanLabeler):
        spans = graph.dense(encoder(graph, model.config), "span")  # [B, S, 2]
        outputs = []
        for index, name in enumerate(("start_logits", "end_logits")):
            graph.node("Gather", spans, graph.constant(index), axis=2, output=name)
            outputs.append(tensor_info(name, "float32", _BATCH))
    elif isinstance(model, BertTokenClassifier):
        graph.dense(encoder(graph, model.config), "classifier", output="logits")
        outputs = [tensor_info("logits", "float32", [*_BATCH, model.num_labels])]
    elif isinstance(model, BertClassifier):
        first = _first_token(graph, model.config)
        graph.dense(pooler(graph, first), "classifier", output="logits")
        outputs = [tensor_info("logits", "float32", ["batch", model.num_labels])]
    else:
        outputs = _vectors(graph, model.config, spec)
    return graph.model(inputs, outputs)


def _first_token(graph: Graph, config: BertConfig) -> str:
    """Adds the encoder, whose last layer is computed for [CLS] only: -> [B, 1, H]."""
    hidden, mask = embeddings(graph, config), key_mask(graph)
    *paths, last = (f"encoder/layer_{index}" for index in range(config.num_hidden_layers))
    for path in paths:
        hidden = block(graph, hidden, mask, path, config)
    start, end = graph.constant([0]), graph.constant([1])
    first = graph.node("Slice", hidden, start, end, end)
    return block(graph, hidden, mask, last, config, queries=first)


def _best_tokens(graph: Graph, config: BertConfig, spec: NetworkSpec, tied: bool) -> list:
    """Adds the probabilities and ids of the best tokens of each mask, [P, K] each."""
    width = graph.constant([-1, config.hidden_size])
    tokens = graph.node("Reshape", encoder(graph, config), width)  # [B * S, H]
    masks = graph.node("Gather", tokens, "mask_places", axis=0)
    probabilities = graph.node("Softmax", masked_lm(graph, masks, config, tied), axis=-1)
    graph.top_k(probabilities, spec.top_k, ("scores", "best_ids"))
    graph.node("Cast", "best_ids", to=onnx.TensorProto.INT32, output="token_ids")
    shape = ["masks", spec.top_k]
    return [tensor_info("scores", "float32", shape), tensor_info("token_ids", "int32", shape)]


def _vectors(graph: Graph, config: BertConfig, spec: NetworkSpec) -> list:
    """Adds the [CLS] vector, the mean over tokens and the pooled output, [B, 2 or 3, H]."""
    hidden = encoder(graph, config)
    start, end = graph.constant([0]), graph.constant([1])
    parts = [graph.node("Slice", hidden, start, end, end)]  # [B, 1, H]
    mask = graph.node("Cast", "input_mask", to=onnx.TensorProto.FLOAT)
    mask = graph.node("Unsqueeze", mask, graph.constant([-1]))  # [B, S, 1]
    total = graph.node("ReduceSum", graph.node("Mul", hidden, mask), graph.constant([1]))
    parts.append(graph.node("Div", total, graph.node("ReduceSum", mask, graph.constant([1]))))
    if spec.pooled:
        parts.append(graph.node("Unsqueeze", pooler(graph, hidden), graph.constant([1])))
    graph.node("Concat", *parts, axis=1, output="vectors")
    return [tensor_info("vectors", "float32", ["batch", len(parts), config.hidden_size])]
