"""Measures how well vocabularies fit the texts of GLUE tasks.

    .venv/bin/python benchmarks/split_words.py VOCAB ...

For each task and vocabulary, the script prints which share of the words of the development set is
split into several tokens, and the mean number of tokens per word. A model that was pre-trained on
other texts knows little about split words.
"""

import argparse
from pathlib import Path

import tensorflow as tf
from workers import ROOT

from keras_bert.tasks.classification.glue import find_task, read_glue
from keras_bert.text.tokenizer import BertTokenizer

TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")


def share_of_split_words(tokenizer: BertTokenizer, texts: list[str]) -> tuple[float, float]:
    """Returns the share of words with several tokens, and the mean number of tokens per word.

    Words are sequences of letters; numbers and punctuation are ignored.
    """
    words = tokenizer.split_words(texts).values
    words = tf.boolean_mask(words, tf.strings.regex_full_match(words, r"\pL+"))
    counts = tokenizer.tokenize_words(words).row_lengths().numpy()
    return float((counts > 1).mean()), float(counts.mean())


def main() -> None:
    """Prints one table row per task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vocabularies", nargs="+", metavar="VOCAB")
    parser.add_argument("--glue_dir", type=Path, default=ROOT.parent / "shared/data/glue")
    arguments = parser.parse_args()
    tokenizers = [BertTokenizer(path) for path in arguments.vocabularies]
    print(f"| task | {' | '.join(arguments.vocabularies)} |")
    print("| --- |" + " --- |" * len(tokenizers))
    for name in TASKS:
        task = find_task(name)
        read = read_glue(task, arguments.glue_dir / name, train=False, dev=True, test=False)
        columns = [texts for split in read.dev.values() for texts in (split.first, split.second)]
        texts = [text for column in columns for text in column or ()]
        cells = [share_of_split_words(tokenizer, texts) for tokenizer in tokenizers]
        print(f"| {name} | " + " | ".join(f"{100 * a:.1f} %, {b:.2f}" for a, b in cells) + " |")


if __name__ == "__main__":
    main()
