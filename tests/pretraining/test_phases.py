"""Tests successive phases: the state that a later phase starts from, and invalid phases."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.pretraining.inputs import find_inputs
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.run import check_phases, make_state, pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import make_strategy

CONFIG = BertConfig(50, 8, 1, 1, 8, max_position_embeddings=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records):
    folder = tmp_path_factory.mktemp("phases")
    CONFIG.to_json(folder / "config.json")
    for length in (16, 32, 64):
        write_records(folder / f"{length}.tfrecord", 12, length=length)
    return folder


def phase_run(folder, number, records, continue_optimizer=False, data=None, **settings):
    defaults = {
        "bert_config": str(folder / "config.json"),
        "eval_batch_size": 4,
        "num_warmup_steps": 0,
        "do_eval": False,
    }
    return Phase(
        PretrainingSettings(str(records), **defaults | settings),
        TrainingSettings(num_train_steps=3, train_batch_size=4, jit_compile=False),
        {"number": number},
        data or {},
        continue_optimizer,
        f"own.toml: phase {number}",
    )


def run(output_dir, *runs):
    return pretrain(runs, make_strategy(), output_dir)


@pytest.fixture(scope="module")
def three(folder):
    """Returns a phase, one that keeps its optimizer, and one with a new optimizer at rate 0."""
    return [
        phase_run(folder, 1, folder / "16.tfrecord", schedule_steps=6),
        phase_run(folder, 2, folder / "32.tfrecord", continue_optimizer=True, schedule_steps=6),
        phase_run(folder, 3, folder / "16.tfrecord", learning_rate=0.0),
    ]


@pytest.fixture(scope="module")
def finished(folder, three):
    run(folder / "out", *three)
    return folder / "out"


def weights(run_folder):
    return load_file(run_folder / "model" / "model.safetensors")


def updates(run_folder):
    """Returns the number of optimizer updates of a finished phase."""
    state = load_file(run_folder / "checkpoints" / "step-00000003" / "optimizer.safetensors")
    (count,) = (value for name, value in state.items() if name.endswith("iteration"))
    return int(count)


def same(one, two):
    return all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_each_phase_starts_with_the_weights_of_the_previous_one(finished):
    first, second, third = (weights(finished / f"phase-{number}") for number in (1, 2, 3))
    assert not same(first, second)
    assert same(second, third)  # At learning rate 0 they do not change.
    assert same(third, weights(finished))


@pytest.mark.slow
def test_optimizer_is_kept_or_newly_initialized_as_configured(finished):
    assert [updates(finished / f"phase-{number}") for number in (1, 2, 3)] == [3, 6, 3]


@pytest.mark.slow
def test_next_phase_starts_only_from_the_last_checkpoint(tmp_path, folder, finished):
    previous = shutil.copytree(finished / "phase-1", tmp_path / "previous")
    (previous / "results.json").write_text(
        '{"step": 4}'
    )  # as if the newer of two checkpoints were damaged
    later = phase_run(folder, 2, folder / "16.tfrecord", init_run=str(previous))
    with pytest.raises(
        InputError, match="previous/checkpoints: has no complete checkpoint of step 4"
    ):
        make_state(later, find_inputs(later.settings), make_strategy())


@pytest.mark.slow
def test_phase_with_its_own_checkpoint_needs_no_previous_checkpoint(
    tmp_path, finished, three, caplog
):
    unfinished = shutil.copytree(finished, tmp_path / "out")
    shutil.rmtree(unfinished / "phase-1" / "checkpoints")
    for results in (unfinished / "results.json", unfinished / "phase-2" / "results.json"):
        results.unlink()
    with caplog.at_level("INFO", "absl"):
        assert run(unfinished, *three) == {"step": 3}
    assert f"{unfinished / 'phase-1'} is finished; nothing to do" in caplog.messages


@pytest.mark.slow
def test_finished_recipe_is_not_changed(finished, three):
    before = (finished / "model" / "model.safetensors").stat().st_mtime_ns
    assert run(finished, *three) == {"step": 3}
    assert (finished / "model" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_changed_phase_is_rejected_with_the_difference(finished, three):
    changed = [replace(three[0], record={"number": 7}), *three[1:]]
    with pytest.raises(
        InputError, match=r"settings: phase-1\.number was 1 and is now 7; expected the same"
    ):
        run(finished, *changed)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (0.1, 0.1)),
        ({"dropout_prob": 0.2}, (0.2, 0.2)),
        ({"attention_dropout_prob": 0.0}, (0.1, 0.0)),
        ({"dropout_prob": 0.0, "attention_dropout_prob": 0.3}, (0.0, 0.3)),
    ],
)
def test_attention_has_a_dropout_rate_of_its_own(folder, settings, expected):
    phase = phase_run(folder, 1, folder / "16.tfrecord", **settings)
    config = make_state(phase, find_inputs(phase.settings), make_strategy()).model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == expected


def test_float16_has_a_loss_scale_and_moments_may_be_bfloat16(folder):
    """test_step.py trains in float16, test_checkpoint.py saves bfloat16 moments."""
    types = {"mixed_precision": "float16", "optimizer_state_dtype": "bfloat16"}
    phase = phase_run(folder, 1, folder / "16.tfrecord", **types)
    state = make_state(phase, find_inputs(phase.settings), make_strategy())
    assert state.model.compute_dtype == "float16"
    assert state.loss_scale is not None
    moments = [v for v in state.optimizer.variables if v.path.endswith("_m")]
    assert {v.dtype for v in moments} == {"bfloat16"}


@pytest.mark.slow
def test_training_dropout_is_not_saved_in_the_model_config(tmp_path, folder, finished):
    run(tmp_path, phase_run(folder, 1, folder / "16.tfrecord", dropout_prob=0.0))
    assert not same(weights(tmp_path), weights(finished / "phase-1"))
    saved = json.loads((tmp_path / "model" / "config.json").read_text())
    assert saved["hidden_dropout_prob"] == saved["attention_probs_dropout_prob"] == 0.1


def test_evaluation_records_may_have_stored_masks_in_unpacked_rows(tmp_path, folder, write_dataset):
    stored, dynamic = (
        write_dataset(tmp_path / f"{kind}", dynamic=kind, pack=kind, dupe_factor=passes)
        for kind, passes in ((False, 1), (True, 2))
    )
    data = {"dynamic": True, "dupe_factor": 2}
    matching = phase_run(folder, 1, dynamic, data=data, bert_config="tiny", eval_file=str(stored))
    check_phases([matching], make_strategy())
    message = r"own\.toml: phase 1: data: dynamic is true, but .*False was made with false"
    other = phase_run(folder, 1, stored, data=data, bert_config="tiny", eval_file=str(stored))
    with pytest.raises(InputError, match=message):
        check_phases([other], make_strategy())


@pytest.mark.parametrize(
    ("length", "continue_optimizer", "objective", "message"),
    [
        (64, False, None, ".*only 32 positions"),
        (16, False, "ltr", "objective ltr cannot follow mlm_nsp; expected ltr in all"),
        (16, True, "mlm", "objective mlm cannot follow mlm_nsp; expected the same obj"),
    ],
)
def test_invalid_later_phase_is_rejected_before_the_first_starts(
    tmp_path, folder, length, continue_optimizer, objective, message
):
    first = phase_run(folder, 1, folder / "16.tfrecord")
    records = folder / f"{length}.tfrecord"
    later = phase_run(folder, 2, records, continue_optimizer, objective=objective)
    with pytest.raises(InputError, match=rf"own\.toml: phase 2: {message}"):
        run(tmp_path / "out", first, later)
    assert not (tmp_path / "out").exists()
