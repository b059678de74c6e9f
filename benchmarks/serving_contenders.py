"""The contenders of serving.py: each maps first and second texts to label indices."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from workers import ROOT

CONTENDERS = (
    "ours_tensorflow_float32",
    "ours_tensorflow_bfloat16",
    "ours_onnxruntime_float32",
    "ours_onnxruntime_int8",
    "ours_openvino_float32",
    "ours_openvino_bfloat16",
    "torch_float32",
    "torch_bfloat16",
    "onnxruntime_float32",
    "onnxruntime_int8",
    "openvino_float32",
    "openvino_bfloat16",
    "keras_hub",
)
IN_PEERS = ("torch_float32", "torch_bfloat16", "keras_hub")

# First texts, second texts -> label indices.
Classify = Callable[[Sequence[str], Sequence[str]], np.ndarray]


def export(model_dir: str, folder: Path, length: int) -> None:
    """Writes the files of the contenders: SavedModels and ONNX files."""
    sys.path.insert(0, str(ROOT))
    from keras_bert.tasks.export import ExportSettings
    from keras_bert.tasks.export import export as write

    for compute_type, path in (("float32", "1"), ("bfloat16", "2")):
        write(
            ExportSettings(
                model_dir,
                str(folder / "ours" / path),
                compute_type=compute_type,
                max_seq_length=length,
                engines=("onnxruntime", "openvino"),
                int8=True,
            )
        )
    for int8, path in ((False, "1"), (True, "2")):
        write(ExportSettings(model_dir, str(folder / "onnx" / path), format="onnx", int8=int8))


def make(contender: str, folder: Path, length: int) -> Classify:
    """Returns the function of a contender, whose files are in `folder`."""
    library, _, precision = contender.partition("_")
    if library == "ours":
        engine, _, precision = precision.partition("_")
        return make_ours(engine, precision, folder)
    if library == "torch":
        return make_torch(Path((folder / "model_dir").read_text()), precision, length)
    if library == "keras":
        return make_keras_hub((folder / "model_dir").read_text(), length)
    run = {"onnxruntime": onnxruntime_call, "openvino": openvino_call}[library]
    path = folder / "onnx" / ("2" if precision == "int8" else "1")
    return make_tokenized(run(path / "model.onnx", precision), path / "vocab.txt", length)


def make_ours(engine: str, precision: str, folder: Path) -> Classify:
    """Returns a function that calls the exported signature of the precision on an engine."""
    version = folder / "ours" / ("2" if precision == "bfloat16" else "1")
    return make_signature(engine, precision, version)


def make_signature(engine: str, precision: str, version: Path) -> Classify:
    """Returns a function that calls the signature of an export on an engine, as the server does."""
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  Registers the ops.

    from keras_bert.export.engines import EngineRequest, open_engine

    info = json.loads((version / "export.json").read_text("utf-8"))
    loaded = tf.saved_model.load(str(version))
    opened = open_engine(version, loaded, info, EngineRequest(engine, precision))
    print(opened.name, opened.precision, file=sys.stderr, flush=True)
    serve = opened.functions["serving_default"]

    def classify(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        outputs = serve(text=tf.constant(first), text_pair=tf.constant(second))
        return outputs["label"].numpy().astype(int)

    classify.engine = opened  # The object keeps the variables alive.
    return classify


def make_torch(model_dir: Path, precision: str, length: int) -> Classify:
    """Returns a function that runs transformers' tokenizer and model; bfloat16 is autocast."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.BertForSequenceClassification.from_pretrained(model_dir).eval()

    def classify(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        batch = tokenizer(
            list(first),
            list(second),
            padding=True,
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        is_bfloat16 = precision == "bfloat16"
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
            return model(**batch).logits.float().argmax(-1).numpy()

    return classify


def make_tokenized(run: Callable[[dict], np.ndarray], vocab: Path, length: int) -> Classify:
    """Returns a function that calls `run` ({input: array} -> logits) behind `tokenizers`."""
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(str(vocab))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding()

    def classify(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        rows = tokenizer.encode_batch(list(zip(first, second, strict=True)))
        inputs = {
            "input_ids": [row.ids for row in rows],
            "input_mask": [row.attention_mask for row in rows],
            "segment_ids": [row.type_ids for row in rows],
        }
        return run({k: np.array(v, np.int64) for k, v in inputs.items()}).argmax(-1)

    return classify


def onnxruntime_call(path: Path, precision: str) -> Callable[[dict], np.ndarray]:
    """Returns onnxruntime's own call of an ONNX file, with its default settings."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda inputs: session.run(["logits"], inputs)[0]


def openvino_call(path: Path, precision: str) -> Callable[[dict], Any]:
    """Returns OpenVINO's own call of an ONNX file, with its default settings."""
    import openvino

    hint = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision]}
    request = openvino.Core().compile_model(str(path), "CPU", hint).create_infer_request()
    return lambda inputs: request.infer(inputs)["logits"]


def make_keras_hub(model_dir: str, length: int) -> Classify:
    """Returns a function that calls KerasHub's predict."""
    import keras_hub
    from safetensors.numpy import load_file

    weights = load_file(Path(model_dir, "model.safetensors"))
    kernel, bias = weights["classifier.weight"].T, weights["classifier.bias"]
    tokenizer = keras_hub.models.BertTokenizer.from_preset(model_dir, strip_accents=True)
    model = keras_hub.models.BertTextClassifier(
        keras_hub.models.BertBackbone.from_preset(model_dir),
        num_classes=len(bias),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, length),
    )
    model.output_dense.set_weights([kernel, bias])  # KerasHub opens the encoder without heads.

    def classify(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        sides = np.array(first), np.array(second)
        return model.predict(sides, batch_size=len(first), verbose=0).argmax(-1)

    return classify
