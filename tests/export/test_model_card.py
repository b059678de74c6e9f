"""Model cards name files and folders without the local folders that contain them."""

import pytest

from keras_bert.export.model_card import run_card
from keras_bert.text.settings import TokenizerSettings
from tests.export.conftest import CONFIG


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/runs/mrpc/model", "mrpc"),
        ("/data/bert-base", "bert-base"),
        ("model", "model"),
        ("runs/mrpc/", "mrpc"),
        ("/home/me/hub/models--org--bert/snapshots/0123abcd", "org/bert"),
        ("hf://org/bert", "org/bert"),
    ],
)
def test_card_of_a_run_has_its_settings_data_and_scores(path, name):
    run = {
        "init_checkpoint": path,
        "learning_rate": 2e-5,
        "data_dir": "/home/me/glue/MRPC",
        "input_file": ["/home/me/a.tfrecord", "/home/me/b.tfrecord"],
        "train_sha256": "12ab",
        "vocab_sha256": "34cd",
    }
    results = {"step": 10, "accuracy": 0.81234, "eval_truncated": 3}
    card = run_card("classification", CONFIG, TokenizerSettings(), run, results, ["no"])
    assert card.startswith("# BERT model that predicts the label or score of a text\n\n1 layers, ")
    for line in (
        f"Trained by keras_bert from the weights of `{name}`.",
        "Labels, in the order of the logits: `no`.",
        f"| init_checkpoint | {name} |",
        "| learning_rate | 2e-05 |",
        "| data_dir | MRPC |",
        "| input_file | a.tfrecord, b.tfrecord |",
        "| train_sha256 | 12ab |",
        "| accuracy | 0.8123 |",
        "- The model was trained on sequences of at most 32 tokens.",
    ):
        assert line in card
    for word in ("/home/me", "vocab_sha256", "step", "truncated", "None"):
        assert word not in card
