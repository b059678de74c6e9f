"""Tests runs on a full disk: a one-line error, earlier files intact, and the same command again."""

import pytest

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.pretraining import run as run_module
from keras_bert.pretraining.run import Phase, pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.checkpoint import CheckpointWriter, list_checkpoints, restore_latest
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import make_strategy
from tests.training.test_checkpoint import make, save

# Free bytes: nothing can be written, or only the first of several files.
FREE = (0, 8192)


@pytest.mark.parametrize("free", FREE)
def test_checkpoint_on_a_full_disk_is_an_error_and_keeps_the_earlier_ones(small_disk, free):
    folder = small_disk.path
    save(folder, 1, 1.0)
    model, optimizer = make(units=100_000, value=2.0)
    writer = CheckpointWriter(folder)
    small_disk.fill(free)
    writer.save(2, model, optimizer)
    with pytest.raises(InputError, match=r"step-00000002: cannot be written \(.*[Nn]o space left"):
        writer.wait()
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    assert restore_latest(folder, *make()) == 1
    small_disk.release()
    writer.save(2, model, optimizer)
    writer.wait()
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000001", "step-00000002"]


@pytest.fixture
def run(small_disk, tmp_path, write_records):
    """Returns a run of three steps on the small disk."""
    config = BertConfig(50, 16, 1, 1, 8, max_position_embeddings=16)
    config.to_json(tmp_path / "config.json")
    records = write_records(tmp_path / "a.tfrecord", 12)
    settings = PretrainingSettings(
        str(records), bert_config=str(tmp_path / "config.json"), eval_batch_size=4
    )
    training = TrainingSettings(
        num_train_steps=3, train_batch_size=4, jit_compile=False, save_checkpoints_steps=2
    )
    folder = small_disk.path / "out"
    return lambda: pretrain([Phase(settings, training)], make_strategy(), folder)


@pytest.mark.slow
def test_model_directory_on_a_full_disk_is_an_error_and_the_same_command_writes_it(
    small_disk, run, monkeypatch
):
    folder, save_model = small_disk.path / "out", run_module.save_model_directory

    def full_disk(*args, **options):
        small_disk.fill(8192)
        save_model(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_model_directory", full_disk)
        with pytest.raises(InputError, match=r"out.model: cannot be written \(.*[Nn]o space left"):
            run()
    assert {path.name for path in folder.iterdir()} == {
        *("checkpoints", "metrics.jsonl", "run.json", "tensorboard")
    }
    small_disk.release()
    assert run()["step"] == 3
    assert (folder / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_run_that_starts_on_a_full_disk_leaves_no_files(small_disk, run):
    small_disk.fill()
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        run()
    assert not (small_disk.path / "out").exists()
