"""Model cards name files and folders without the local folders that contain them."""

import pytest

from keras_bert.export.model_card import data_table, public_name, training_table


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/runs/mrpc/model", "mrpc"),
        ("/data/bert-base", "bert-base"),
        ("model", "model"),
        ("runs/mrpc/", "mrpc"),
    ],
)
def test_public_name_has_no_folders(path, name):
    assert public_name(path) == name


def test_tables_have_no_local_folders():
    run = {"init_checkpoint": "/home/me/bert", "learning_rate": 2e-5}
    assert "| init_checkpoint | bert |" in training_table(run)
    files = ["/home/me/a.tfrecord", "/home/me/b.tfrecord"]
    table = data_table({"data_dir": "/home/me/glue/MRPC", "input_file": files})
    assert "| data_dir | MRPC |" in table
    assert "| input_file | a.tfrecord, b.tfrecord |" in table


def test_values_that_are_not_paths_are_skipped():
    damaged = {"init_checkpoint": 3, "train_file": True, "input_file": ["/home/me/a", None]}
    assert "| init_checkpoint |  |" in training_table(damaged)
    assert "| train_file |  |" in data_table(damaged)
    assert "| input_file | a |" in data_table(damaged)
