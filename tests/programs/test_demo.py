"""The demo runs from raw text to the answers of a served classifier."""

import json
import subprocess
import sys

import pytest

from data_tools.python_corpus import PACKAGES
from keras_bert.programs.demo import QUESTIONS


@pytest.mark.slow
def test_demo_serves_the_classifier_that_it_trained(root, tmp_path):
    command = [sys.executable, "-m", "keras_bert", "demo", "--num_train_steps=20"]
    command += [f"--output_dir={tmp_path / 'demo'}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(QUESTIONS)
    for answer in answers:
        (prediction,) = answer["predictions"]
        assert prediction["label"] in PACKAGES
        assert f"{prediction['label']:9} {max(prediction['probabilities']):.1%}" in done.stdout
    assert "Total time: " in done.stdout
