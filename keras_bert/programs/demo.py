"""Goes from raw text to a served classifier, on a corpus that every Python installation contains.

    keras-bert demo

    keras-bert demo --output_dir=demo --num_train_steps=1000

It runs each program of the pipeline as a user would, and prints each command: a small BERT is
pre-trained and fills masks; it is fine-tuned to recognize which package of the standard library a
sentence is about; the classifier is exported, served, and asked. The server needs the extra
`serving`. To resume an interrupted demo, run the same command again.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from absl.flags import FlagValues

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.options import option
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.startup import OUTPUT_CLOSED
from keras_bert.text.vocabulary import load_vocab


@dataclass(frozen=True)
class DemoOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "output"
    output_dir: str = option("demo", "Folder for all files of the demo.")
    num_train_steps: int = option(5000, "Number of training steps.", min=1, group="training")


# Sentences of documents that are not in the training data, each with one word masked.
SENTENCES = (
    "Return [MASK] if the watcher is installed and ready to handle process exit notifications.",
    "The headers and data are separated [MASK] a blank line.",
    "Return the docstring for the given node or None if no docstring can be [MASK].",
    "For more [MASK] on context managers, see Context Manager Types.",
    "The precision is not [MASK] for integer presentation types.",
)
QUESTIONS = (
    "Schedules a coroutine on the event loop.",
    "Returns the headers of the message.",
    "Finds the module that is imported by name.",
    "Returns the first element with the given tag.",
)
# In short sequences, a small model learns to use the context after fewer steps.
_RECORDS = (
    "create-pretraining-data --input_file={out}/corpus/%s.txt --output_dir={out}/records/%s "
    "--vocab_file={out}/vocab.txt --max_seq_length=32 --max_predictions_per_seq=5"
)
_PRETRAIN = (
    "pretrain --bert_config={out}/config.json --input_file={out}/records/train "
    "--eval_file={out}/records/eval --output_dir={out}/run --train_batch_size=32 "
    "--learning_rate=1e-3 --num_train_steps={steps} --num_warmup_steps={warmup} --log_steps=500"
)
_CLASSIFY = (
    "classify --train_file={out}/corpus/labelled_train.csv "
    "--eval_file={out}/corpus/labelled_eval.csv --init_checkpoint={out}/run/model "
    "--output_dir={out}/classifier --max_seq_length=64 --train_batch_size=32 "
    "--learning_rate=5e-4 --num_train_epochs=4"
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Runs the pipeline, and prints the scores, some filled masks and the server's answers."""
    reject_arguments(arguments)
    started = time.monotonic()
    out, steps = Path(flags.output_dir), flags.num_train_steps
    values = {"out": out, "steps": steps, "warmup": steps // 10}

    def run(command: str, *arguments: str) -> None:
        words = [word.format(**values) for word in shlex.split(command)]
        process = subprocess.Popen(_command(*words, *arguments))
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()  # It received Ctrl-C too, and saves a checkpoint if it trains.
            raise
        if code == OUTPUT_CLOSED:  # The program has the same stdout as this one.
            sys.exit(OUTPUT_CLOSED)
        if code:
            raise InputError(f"the last command failed with exit code {code}")

    if not (out / "corpus" / "labelled_eval.csv").exists():  # The last file of python-corpus.
        run("python-corpus --output_dir={out}/corpus")
    if not (out / "vocab.txt").exists():
        run(
            "build-vocab --input_file={out}/corpus/train.txt --vocab_file={out}/vocab.txt "
            "--vocab_size=4096"
        )
    for split in ("train", "eval"):
        run(_RECORDS % (split, split))
    _write_config(out / "config.json", out / "vocab.txt")
    run(_PRETRAIN)
    _report(json.loads((out / "run" / "results.json").read_text(encoding="utf-8")))
    run("fill-mask --model_dir={out}/run/model", *SENTENCES)
    run(_CLASSIFY)
    if not (out / "serving" / "1").exists():
        run("export --model_dir={out}/classifier --export_dir={out}/serving/1")
    _serve_and_ask(f"{out}/serving")
    print(f"\nTotal time: {time.monotonic() - started:.0f} seconds.")


def _command(*words: str) -> list[str]:
    """Prints the command line that runs a program, and returns it."""
    command = ["-m", "keras_bert", *words]
    print(f"\n$ {shlex.join([os.path.relpath(sys.executable), *command])}", flush=True)
    return [sys.executable, *command]


def _write_config(path: Path, vocab: Path) -> None:
    """Writes the config of a small BERT that learns fast from little text.

    It is the bundled config `tiny` without dropout, because few examples repeat. The initial
    weights are about 1/sqrt(H): 27.4 % of the masked tokens are right, with 0.02 only 24.1 %.
    """
    tiny = BertConfig.from_json("tiny").to_dict()
    changes = {
        "vocab_size": len(load_vocab(vocab)),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.09,
    }
    BertConfig.from_dict(tiny | changes).to_json(path)


def _report(results: dict[str, float]) -> None:
    print("\nOn held-out documents                 this model   unigram baseline")
    for name, form in (
        ("masked_lm_loss", ".2f"),
        ("masked_lm_accuracy", ".1%"),
        ("next_sentence_accuracy", ".1%"),
    ):
        score, baseline = (format(results[key], form) for key in (name, f"unigram_{name}"))
        print(f"{name:37} {score:>10} {baseline:>18}", flush=True)


def _serve_and_ask(folder: str) -> None:
    """Serves the exported classifier, sends it sentences, and prints the answers."""
    command = _command("serve", f"--export_dir={folder}", "--model_name=packages", "--port=0")
    labels = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            for line in server.stderr:
                print(line, end="", flush=True)
                if "REST API: " in line:
                    break
            else:
                raise InputError("the server ended before it was ready")
            url = f"{line.split('REST API: ')[1].strip()}/v1/models/packages:predict"
            for question in QUESTIONS:
                body = json.dumps({"instances": [question]})
                print(f"\n$ curl {url} -d {shlex.quote(body)}", flush=True)
                header = {"Content-Type": "application/json"}
                request = urllib.request.Request(url, body.encode(), header)
                with urllib.request.urlopen(request, timeout=60) as response:
                    answer = response.read().decode().strip()
                print(answer, flush=True)
                (prediction,) = json.loads(answer)["predictions"]
                labels.append(f"{prediction['label']:9} {max(prediction['probabilities']):.1%}")
        finally:
            server.terminate()
    print("\nPackages of the sentences:")
    for question, label in zip(QUESTIONS, labels, strict=True):
        print(f"  {question:45} {label}")


PROGRAM = Program("demo", __doc__, (DemoOptions,), main)
