"""The main job on a corpus that every Python carries: raw text in, a pre-trained BERT out.

    python run_demo.py --output_dir=demo

Runs each program of the pipeline as a user would, printing its command, and then shows what the
model learnt. Run again, it goes on where it stopped.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.programs.program import no_arguments, run
from keras_bert.text.vocabulary import load_vocab

FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", "demo", "Everything that the demo makes goes here.")
flags.DEFINE_integer("num_train_steps", 5000, "Training steps.", lower_bound=1)

# Sentences of documents that are held out of training, each with one word masked.
SENTENCES = (
    "Return [MASK] if the watcher is installed and ready to handle process exit notifications.",
    "The headers and data are separated [MASK] a blank line.",
    "Return the docstring for the given node or None if no docstring can be [MASK].",
    "For more [MASK] on context managers, see Context Manager Types.",
    "The precision is not [MASK] for integer presentation types.",
)


def main(argv: Sequence[str]) -> None:
    """Runs the pipeline and prints what the model learnt."""
    no_arguments(argv)
    started = time.monotonic()
    out = Path(FLAGS.output_dir)
    corpus, vocab, records = out / "corpus", out / "vocab.txt", out / "records"
    if not (corpus / "eval.txt").exists():  # the file that is written last
        _run(["-m", "data_tools.python_corpus"], output_dir=corpus)
    if not vocab.exists():
        _run(
            ["-m", "data_tools.build_vocab"],
            input_file=corpus / "train.txt",
            vocab_file=vocab,
            vocab_size=4096,
        )
    for split in ("train", "eval"):
        _run(
            ["-m", "data_tools.create_pretraining_data"],
            input_file=corpus / f"{split}.txt",
            output_dir=records / split,
            vocab_file=vocab,
            max_seq_length=64,
            max_predictions_per_seq=10,
        )
    _write_config(out / "config.json", vocab)
    _run(
        ["run_pretraining.py"],
        bert_config=out / "config.json",
        input_file=records / "train",
        eval_file=records / "eval",
        output_dir=out / "run",
        train_batch_size=16,
        learning_rate=1e-3,
        num_train_steps=FLAGS.num_train_steps,
        num_warmup_steps=FLAGS.num_train_steps // 10,
        log_steps=500,
    )
    _report(json.loads((out / "run" / "results.json").read_text(encoding="utf-8")))
    _run(["run_fill_mask.py"], *SENTENCES, model_dir=out / "run" / "model")
    print(f"\nThe whole job took {time.monotonic() - started:.0f} seconds.")


def _write_config(path: Path, vocab: Path) -> None:
    """Writes the config of a small BERT that learns fast from little text.

    Two layers of width 128, as the bundled `tiny`. No dropout, since few examples come twice; and
    weights that start near 1/sqrt(H), since 0.02 is made for H = 768 and slows so narrow a model.
    """
    tiny = BertConfig.from_json("tiny").to_dict()
    changes = {
        "vocab_size": len(load_vocab(vocab)),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.09,
    }
    BertConfig.from_dict(tiny | changes).to_json(path)


def _run(program: Sequence[str], *arguments: str, **values: object) -> None:
    flags_given = [f"--{name}={value}" for name, value in values.items()]
    command = [*program, *flags_given, *arguments]
    print(f"\n$ {shlex.join([os.path.relpath(sys.executable), *command])}", flush=True)
    done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode:
        raise InputError(f"the command above ended with exit code {done.returncode}")


def _report(results: dict[str, float]) -> None:
    print(
        f"""
On documents held out of training     this model   a guess by frequency alone
masked-LM loss (nats)                 {results["masked_lm_loss"]:10.2f}   \
{results["unigram_masked_lm_loss"]:10.2f}
masked-LM accuracy                    {results["masked_lm_accuracy"]:10.1%}   \
{results["unigram_masked_lm_accuracy"]:10.1%}
next-sentence accuracy                {results["next_sentence_accuracy"]:10.1%}   \
{results["unigram_next_sentence_accuracy"]:10.1%}
""",
        flush=True,
    )


if __name__ == "__main__":
    run(main)
