"""Pre-trains a small BERT from raw text, on a corpus that every Python installation contains.

    keras-bert demo --output_dir=demo

It runs each program of the pipeline as a user would, prints each command, and then fills masks with
the trained model. To resume an interrupted demo, run the same command again.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.standard_output import OUTPUT_CLOSED
from keras_bert.config import BertConfig
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.text.vocabulary import load_vocab


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string("output_dir", "demo", "Folder for all files of the demo.")
    define.integer("num_train_steps", 5000, "Number of training steps.", lower_bound=1)


# Sentences of documents that are not in the training data, each with one word masked.
SENTENCES = (
    "Return [MASK] if the watcher is installed and ready to handle process exit notifications.",
    "The headers and data are separated [MASK] a blank line.",
    "Return the docstring for the given node or None if no docstring can be [MASK].",
    "For more [MASK] on context managers, see Context Manager Types.",
    "The precision is not [MASK] for integer presentation types.",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Runs the pipeline, and prints the scores and some filled masks."""
    reject_arguments(arguments)
    started = time.monotonic()
    out = Path(flags.output_dir)
    corpus, vocab, records = out / "corpus", out / "vocab.txt", out / "records"
    if not (corpus / "eval.txt").exists():  # The last file that python-corpus writes.
        _run("python-corpus", output_dir=corpus)
    if not vocab.exists():
        _run(
            "build-vocab",
            input_file=corpus / "train.txt",
            vocab_file=vocab,
            vocab_size=4096,
        )
    for split in ("train", "eval"):
        _run(
            "create-pretraining-data",
            input_file=corpus / f"{split}.txt",
            output_dir=records / split,
            vocab_file=vocab,
            max_seq_length=64,
            max_predictions_per_seq=10,
        )
    _write_config(out / "config.json", vocab)
    _run(
        "pretrain",
        bert_config=out / "config.json",
        input_file=records / "train",
        eval_file=records / "eval",
        output_dir=out / "run",
        train_batch_size=16,
        learning_rate=1e-3,
        num_train_steps=flags.num_train_steps,
        num_warmup_steps=flags.num_train_steps // 10,
        log_steps=500,
    )
    _report(json.loads((out / "run" / "results.json").read_text(encoding="utf-8")))
    _run("fill-mask", *SENTENCES, model_dir=out / "run" / "model")
    print(f"\nTotal time: {time.monotonic() - started:.0f} seconds.")


def _write_config(path: Path, vocab: Path) -> None:
    """Writes the config of a small BERT that learns fast from little text.

    It is the bundled config `tiny` without dropout, because few examples repeat. The initial
    weights are about 1/sqrt(H): the usual 0.02 is for H = 768, and slows down training at H = 128.
    """
    tiny = BertConfig.from_json("tiny").to_dict()
    changes = {
        "vocab_size": len(load_vocab(vocab)),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.09,
    }
    BertConfig.from_dict(tiny | changes).to_json(path)


def _run(program: str, *arguments: str, **values: object) -> None:
    flags_given = [f"--{name}={value}" for name, value in values.items()]
    command = ["-m", "keras_bert", program, *flags_given, *arguments]
    print(f"\n$ {shlex.join([os.path.relpath(sys.executable), *command])}", flush=True)
    done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode == OUTPUT_CLOSED:  # The program has the same stdout as this one.
        sys.exit(OUTPUT_CLOSED)
    if done.returncode:
        raise InputError(f"the last command failed with exit code {done.returncode}")


def _report(results: dict[str, float]) -> None:
    print(
        f"""
On held-out documents                 this model   unigram baseline
masked-LM loss (nats)                 {results["masked_lm_loss"]:10.2f}   \
{results["unigram_masked_lm_loss"]:10.2f}
masked-LM accuracy                    {results["masked_lm_accuracy"]:10.1%}   \
{results["unigram_masked_lm_accuracy"]:10.1%}
next-sentence accuracy                {results["next_sentence_accuracy"]:10.1%}   \
{results["unigram_next_sentence_accuracy"]:10.1%}
""",
        flush=True,
    )


PROGRAM = Program("demo", __doc__, define_flags, main)
