"""Measures how fast exported classifiers answer, from text to label, compared with other libraries.

    .venv/bin/python benchmarks/serving.py --model_dir=OUT/model [--texts=mrpc] [--rounds=10]

Each contender gets the same fine-tuned MRPC classifier (six layers, hidden size 384;
run_classifier.py on MiniLM) and the same strings, and returns labels:

- `ours_ENGINE_PRECISION`: `keras_bert.load(EXPORT, engine).predict`;
- `torch_PRECISION`: transformers with its fast tokenizer and dynamic padding;
- `onnxruntime_PRECISION` and `openvino_PRECISION`: our `--format=onnx` file in the library's own
  call behind Hugging Face's tokenizers, with dynamic padding;
- `kerashub`: `predict` of KerasHub's text classifier.

A turn consists of 50 calls with one text or 2 calls with 64 texts. The texts are the pairs of
MRPC's development set, truncated to 128 tokens, or XQuAD's questions and contexts, truncated to
384. Each contender has its default number of threads.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from texts import DATA, mrpc_pairs, read_questions
from workers import ROOT, Worker, check_names, in_turn, open_export, python_of, table

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
    "kerashub",
)
BASELINE = "torch_float32"
LENGTHS = {"mrpc": 128, "xquad": 384}
CALLS = {1: 50, 64: 2}  # Batch size -> calls per turn.
SLOW = {"kerashub": {1: 3, 64: 1}}  # A call of predict builds a tf.data pipeline.

# First texts, second texts -> label indices.
Classify = Callable[[Sequence[str], Sequence[str]], np.ndarray]

flags.DEFINE_string(
    "model_dir", "", "model directory of an MRPC classifier, written by run_classifier.py"
)
flags.DEFINE_enum("texts", "mrpc", list(LENGTHS), "texts to classify")
flags.DEFINE_integer("rounds", 10, "rounds of each contender and batch size", lower_bound=1)
flags.DEFINE_list("contenders", list(CONTENDERS), f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_string("worker", None, "internal: contender,texts,folder")
FLAGS = flags.FLAGS


def export(folder: Path, length: int) -> None:
    """Writes the exports of the contenders to a folder."""
    sys.path.insert(0, str(ROOT))
    import keras_bert

    (folder / "model_dir").write_text(str(Path(FLAGS.model_dir).absolute()))
    model = keras_bert.TextClassifier.from_pretrained(FLAGS.model_dir, max_seq_length=length)
    for compute_type in ("float32", "bfloat16"):
        engines = ("onnxruntime", "openvino")
        model.export(
            folder / compute_type / "1", compute_type=compute_type, engines=engines, int8=True
        )
    for int8, name in ((False, "onnx_float32"), (True, "onnx_int8")):
        model.export(folder / name / "1", format="onnx", int8=int8)


def make(contender: str, folder: Path, length: int) -> Classify:
    """Returns the function of a contender, whose files are in `folder`."""
    library, _, precision = contender.partition("_")
    model_dir = (folder / "model_dir").read_text()
    if library == "ours":
        engine, _, precision = precision.partition("_")
        compute_type = "bfloat16" if precision == "bfloat16" else "float32"
        return open_export(folder / compute_type / "1", engine, precision)
    if library == "torch":
        return make_torch(model_dir, precision, length)
    if library == "kerashub":
        return make_kerashub(model_dir, length)
    path = folder / ("onnx_int8" if precision == "int8" else "onnx_float32") / "1"
    call = {"onnxruntime": onnxruntime_call, "openvino": openvino_call}[library]
    return make_tokenized(call(path / "model.onnx", precision), path / "vocab.txt", length)


def make_torch(model_dir: str, precision: str, length: int) -> Classify:
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
        bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
        with torch.inference_mode(), bfloat16:
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


def make_kerashub(model_dir: str, length: int) -> Classify:
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


def work(contender: str, texts: str, folder: Path) -> None:
    """Runs a turn for each line on stdin, a batch size; prints the seconds of each call as JSON."""
    classify, ready = make(contender, folder, LENGTHS[texts]), {}
    if texts == "mrpc":
        first, second, labels = mrpc_pairs()
        batches = range(0, len(first), 64)
        answers = [classify(first[i : i + 64], second[i : i + 64]) for i in batches]
        correct = np.concatenate(answers) == np.array(labels, int)
        ready["accuracy"] = 100 * float(correct.mean())
    else:
        questions = read_questions(DATA / "squad/xquad.en.json")
        first, second = ([each[name] for each in questions] for name in ("question", "context"))
    for batch in CALLS:  # Warm-up.
        classify(first[:batch], second[:batch])
    print(json.dumps(ready), flush=True)
    start = 0
    for line in sys.stdin:
        batch, seconds = int(line), []
        for _ in range(SLOW.get(contender, CALLS)[batch]):
            start %= len(first) - batch
            begin = time.perf_counter()
            classify(first[start : start + batch], second[start : start + batch])
            seconds.append(time.perf_counter() - begin)
            start += batch
        print(json.dumps({"seconds": seconds}), flush=True)


def rows_of(workers: dict[str, Worker]) -> list[list[object]]:
    """Runs the turns; returns a row for each batch size and contender."""
    rows = []
    for batch in CALLS:
        times = in_turn(workers, FLAGS.rounds, batch)
        means = {name: [np.mean(t["seconds"]) for t in turns] for name, turns in times.items()}
        for name, turns in times.items():
            seconds = np.concatenate([turn["seconds"] for turn in turns])
            p50, p99 = 1e3 * np.percentile(seconds, [50, 99])
            row = [name, batch, f"{p50:.1f}", f"{p99:.1f}" if len(seconds) >= 100 else ""]
            row.append(f"{1e3 * batch / p50:.0f}")
            ratios = np.divide(means.get(BASELINE, np.nan), means[name])
            accuracy = workers[name].ready.get("accuracy", float("nan"))
            rows.append([*row, f"{np.median(ratios):.2f}", f"{accuracy:.2f}"])
    return rows


def main(_) -> None:
    """Exports the model, warms up the contenders, runs their turns and prints the table."""
    if FLAGS.worker:
        contender, texts, folder = FLAGS.worker.split(",")
        return work(contender, texts, Path(folder))
    check_names("contenders", FLAGS.contenders, CONTENDERS)
    if not FLAGS.model_dir:
        sys.exit("--model_dir is required")
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder), LENGTHS[FLAGS.texts])
        workers = {}
        for name in FLAGS.contenders:  # The engines are installed in .venv.
            python = python_of(name if name.startswith(("torch", "kerashub")) else "ours")
            workers[name] = Worker(__file__, f"{name},{FLAGS.texts},{folder}", python)
        rows = rows_of(workers)
        for worker in workers.values():
            worker.close()
    cores = len(os.sched_getaffinity(0))
    print(f"\n{FLAGS.texts}, at most {LENGTHS[FLAGS.texts]} tokens; {cores} cores\n")
    table(["", "batch", "p50 ms", "p99 ms", "texts/s", "x torch", "accuracy"], rows)
    return None


if __name__ == "__main__":
    app.run(main)
