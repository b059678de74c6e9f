"""Measures the accuracy and speed of ONNX files of a classifier, in float32 and in int8.

    .venv/bin/python benchmarks/quantization.py --model_dir=OUT/model [--task=MRPC] [--rounds=3]

The two files and the TensorFlow model are scored on the development set of the task, one
example at a time and in batches of 32 with similar lengths. The batch size matters, because ONNX
computes the scales of int8 activations over the whole batch, including padding.

The column "logits" is the largest difference from TensorFlow's logits, and "labels" is the number
of predictions that differ. Milliseconds are per example, on one thread, at batch size 1, from token
ids to logits: the median over rounds. All contenders run in one process and take turns.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BATCH, LENGTH = 32, 128
INPUTS = ("input_ids", "input_mask", "segment_ids")

flags.DEFINE_string("model_dir", None, "model directory of a run of run_classifier.py")
flags.DEFINE_string("task", "MRPC", "GLUE task whose labels are classes")
flags.DEFINE_string("glue_dir", str(ROOT.parent / "shared" / "data" / "glue"), "GLUE's folder")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_quantization", "folder of the files written")
flags.DEFINE_integer("rounds", 3, "timed rounds of each contender", lower_bound=1)
flags.mark_flag_as_required("model_dir")
FLAGS = flags.FLAGS

# {input name: int32 [B, S]} -> logits, float32 [B, C].
Batch = dict[str, np.ndarray]
Run = Callable[[Batch], np.ndarray]


def tensorflow_run(model) -> Run:
    """Returns a function that runs the Keras model, compiled without XLA."""
    import tensorflow as tf

    specs = {name: tf.TensorSpec([None, None], tf.int32) for name in INPUTS}
    call = tf.function(lambda inputs: model(inputs, training=False), input_signature=[specs])
    return lambda batch: call(batch)["logits"].numpy()


def onnx_run(path: Path) -> Run:
    """Returns a function that runs an ONNX file in onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(batch: Batch) -> np.ndarray:
        feed = {name: value.astype(np.int64) for name, value in batch.items()}
        return session.run(["logits"], feed)[0]

    return run


def batches(examples, size: int, pad_token_id: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yields (indices of examples, padded inputs), from the longest examples to the shortest."""
    order = np.argsort(-examples.lengths, kind="stable")
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        shape = [len(chosen), examples.lengths[chosen].max()]
        batch = {name: np.zeros(shape, np.int32) for name in INPUTS}
        batch["input_ids"][:] = pad_token_id
        for row, index in enumerate(chosen):
            tokens = slice(*examples.starts[index : index + 2])
            length = examples.lengths[index]
            batch["input_ids"][row, :length] = examples.input_ids[tokens]
            batch["segment_ids"][row, :length] = examples.segment_ids[tokens]
            batch["input_mask"][row, :length] = 1
        yield chosen, batch


def logits_of(run: Run, prepared: list[tuple[np.ndarray, Batch]]) -> np.ndarray:
    """Runs every batch from `batches`; returns the logits in the order of the examples, [n, C]."""
    outputs = np.concatenate([run(batch) for _, batch in prepared])
    logits = np.empty_like(outputs)
    logits[np.concatenate([chosen for chosen, _ in prepared])] = outputs
    return logits


def main(_) -> None:
    """Writes the files, measures their accuracy and speed, and prints a table."""
    from keras_bert.checkpoints.model_directory import open_model_directory
    from keras_bert.export.onnx import write_onnx
    from keras_bert.models import BertClassifier
    from keras_bert.tasks.classification.data import label_array
    from keras_bert.tasks.classification.glue import find_task, read_glue
    from keras_bert.tasks.classification.metrics import compute_metrics
    from keras_bert.tasks.classification.processor import (
        ClassificationProcessor,
        ClassifierSettings,
    )
    from keras_bert.tasks.prepared import prepare
    from keras_bert.text.tokenizer import BertTokenizer

    directory = open_model_directory(FLAGS.model_dir)
    model = BertClassifier(directory.config, len(directory.labels))
    print(directory.load_into(model))
    task = find_task(FLAGS.task)
    splits = read_glue(task, Path(FLAGS.glue_dir) / task.name, train=False, dev=True, test=False)
    texts = next(iter(splits.dev.values()))
    labels = label_array(texts, "single_label", directory.labels)
    tokenizer = BertTokenizer(directory.vocab, directory.do_lower_case)
    settings = ClassifierSettings(tuple(directory.labels), max_seq_length=LENGTH)
    columns = [texts.first] if texts.second is None else [texts.first, texts.second]
    processor = ClassificationProcessor(tokenizer, settings)
    examples = prepare(processor.preprocess, columns).examples
    one, many = (list(batches(examples, n, tokenizer.pad_token_id)) for n in (1, BATCH))

    runs, sizes = {"TensorFlow float32": tensorflow_run(model)}, {}
    folder = Path(FLAGS.work_dir)
    for kind, int8 in (("float32", False), ("int8", True)):
        path = folder / f"{task.name}-{kind}.onnx"
        write_onnx(model, path, int8=int8)
        runs[f"ONNX {kind}"] = onnx_run(path)
        sizes[f"ONNX {kind}"] = path.stat().st_size / 1e6

    logits = {name: (logits_of(run, one), logits_of(run, many)) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(FLAGS.rounds):
        for name in sizes:
            start = time.perf_counter()
            logits_of(runs[name], one)
            seconds[name].append(time.perf_counter() - start)

    columns = ("", "batch", *task.metrics, "logits", "labels", "MB", "ms an example")
    print(f"\n{FLAGS.model_dir}: {task.name} dev, {len(labels)} examples")
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for name, outputs in logits.items():
        for size, own, reference in zip(
            (1, BATCH), outputs, logits["TensorFlow float32"], strict=True
        ):
            figures = compute_metrics(task.metrics, own.argmax(axis=1), labels)
            cells = [name, str(size), *(f"{100 * figures[metric]:.2f}" for metric in task.metrics)]
            cells.append(f"{np.abs(own - reference).max():.1g}")
            cells.append(str(np.sum(own.argmax(1) != reference.argmax(1))))
            timed = name in sizes and size == 1
            cells.append(f"{sizes[name]:.1f}" if timed else "")
            cells.append(f"{1e3 * median(seconds[name]) / len(labels):.2f}" if timed else "")
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    app.run(main)
