"""The demo runs from raw text to the answers of a served classifier."""

import json
import os
import random
import subprocess
import sys

import pytest

from data_tools.python_corpus import PACKAGES
from keras_bert.programs.demo import QUESTIONS, SENTENCES


def write_corpus(folder):
    """Writes a small corpus with the names of that of python-corpus, which the demo then uses."""
    folder.mkdir(parents=True)
    chance = random.Random(0)
    words = [word for sentence in QUESTIONS + SENTENCES for word in sentence.split()]

    def sentence():
        return " ".join(chance.choices(words, k=8)).replace("[MASK]", "other") + "."

    for split, count in (("train", 40), ("eval", 10)):
        documents = ["\n".join(sentence() for _ in range(6)) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n\n".join(documents) + "\n")
        rows = [f'"{sentence()}",{package}' for package in [*PACKAGES] * 4]
        (folder / f"labelled_{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")


@pytest.mark.slow
def test_demo_serves_the_classifier_that_it_trained(root, tmp_path):
    write_corpus(tmp_path / "demo" / "corpus")
    # With the optimizations that tests/conftest.py and tests/site turn off.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(root)
    command = [sys.executable, "-m", "keras_bert", "demo", "--num_train_steps=20"]
    command += [f"--output_dir={tmp_path / 'demo'}"]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(QUESTIONS)
    for answer in answers:
        (prediction,) = answer["predictions"]
        assert prediction["label"] in PACKAGES
        assert f"{prediction['label']:9} {max(prediction['probabilities']):.1%}" in done.stdout
    assert "Total time: " in done.stdout
