"""The demo runs from raw text to the answers of a served classifier."""

import json

import pytest

from keras_bert.programs.demo import PACKAGES, QUESTIONS


@pytest.mark.slow
def test_demo_serves_the_classifier_that_it_trained(run_program, tmp_path):
    done = run_program("run_demo.py", output_dir=tmp_path / "demo", num_train_steps=20)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(QUESTIONS)
    for answer in answers:
        (prediction,) = answer["predictions"]
        assert prediction["label"] in PACKAGES
        assert f"{prediction['label']:9} {max(prediction['probabilities']):.1%}" in done.stdout
    assert "Total time: " in done.stdout
