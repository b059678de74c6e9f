"""Tests the dry run: invalid settings, the batch sizes that it tries, and reported memory."""

import re
from dataclasses import replace

import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.tasks.pretraining.dry_run import dry_run
from keras_bert.tasks.pretraining.measure import Measured, measure
from keras_bert.tasks.pretraining.phases import PhaseRun
from keras_bert.tasks.pretraining.plan import make_plan, memory_of
from keras_bert.tasks.pretraining.recipe import Phase
from keras_bert.tasks.pretraining.settings import PretrainingSettings
from keras_bert.training.run import TrainingSettings

ONE = tf.distribute.get_strategy()
MEASURE = "keras_bert.tasks.pretraining.measure"


@pytest.fixture
def run(tmp_path):
    config = BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=32,
    )
    config.to_json(tmp_path / "config.json")
    shape = {"max_seq_length": 16, "max_predictions_per_seq": 3}
    return PhaseRun(
        Phase("own.toml", 1, {}, {}),
        PretrainingSettings("", bert_config=str(tmp_path / "config.json"), **shape),
        TrainingSettings(num_train_steps=3, train_batch_size=4, jit_compile=False),
        {},
    )


def measured(run):
    return measure(run, None, make_plan(run, None, 1), ONE)


def test_too_large_length_is_rejected_before_any_measurement(run):
    longer = replace(run.settings, max_seq_length=64)
    second = replace(run, phase=Phase("own.toml", 2, {}, {}), settings=longer)
    message = r"own\.toml: phase 2: --max_seq_length=64, but .* max_position_embeddings 32"
    with pytest.raises(InputError, match=message):
        next(dry_run([run, second], ONE))


@pytest.mark.slow
def test_size_that_does_not_fit_leaves_no_variables(run, monkeypatch):
    created = []

    def out_of_memory(strategy, state, training):
        created.append([*state.model.variables, *state.optimizer.variables])
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(f"{MEASURE}.make_train_steps", out_of_memory)
    monkeypatch.setattr(f"{MEASURE}._available_memory", lambda: None)
    assert measured(run) is None
    assert len(created) == 3  # 4, 2 and 1 sequences
    for variable in (variable.value for variables in created for variable in variables):
        held = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        assert held.shape == [0]


@pytest.mark.slow
def test_cpu_uses_at_most_half_of_its_memory_if_known(run, monkeypatch):
    monkeypatch.setattr(f"{MEASURE}._step_seconds", lambda *arguments: 1.0)
    needed_by_two = memory_of(run, make_plan(run, None, 1).config, 16, 3, 2, 2).total
    available = iter([2 * needed_by_two, None, 0])
    monkeypatch.setattr(f"{MEASURE}._available_memory", lambda: next(available))
    assert measured(run).sequences == 2
    assert measured(run).sequences == 4
    assert measured(run) is None


@pytest.mark.parametrize(
    ("backend", "before", "peak", "at_most"),
    [
        ("jax", 90, 90, True),  # since the start of the program, maybe of another phase
        ("jax", 90, 120, False),
        ("tensorflow", 90, 90, False),  # reset before the measurement
    ],
)
def test_peak_that_did_not_rise_is_an_upper_bound_for_this_phase(
    run, monkeypatch, backend, before, peak, at_most
):
    readings = iter([0, before, peak])
    monkeypatch.setattr(f"{MEASURE}.BACKEND", backend)
    monkeypatch.setattr(f"{MEASURE}.peak_memory", lambda: next(readings))
    monkeypatch.setattr(f"{MEASURE}._step_seconds", lambda *arguments: 1.0)
    found = measured(run)
    assert (found.used, found.at_most) == (peak, at_most)


@pytest.mark.slow
def test_peak_after_a_size_that_did_not_fit_is_an_upper_bound(run, monkeypatch):
    readings = iter([0, 10, 100, 100])

    def seconds(run, inputs, plan, strategy, sequences, micro_batches):
        if sequences == 4:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return float(micro_batches)

    monkeypatch.setattr(f"{MEASURE}.BACKEND", "jax")
    monkeypatch.setattr(f"{MEASURE}.peak_memory", lambda: next(readings))
    monkeypatch.setattr(f"{MEASURE}._step_seconds", seconds)
    found = measured(run)
    assert (found.sequences, found.used, found.at_most) == (2, 100, True)


def test_memory_that_the_system_does_not_report_is_none(run, monkeypatch):
    monkeypatch.setattr(f"{MEASURE}._step_seconds", lambda *arguments: 1.0)
    monkeypatch.setattr("keras_bert.common.host_memory.peak_resident", lambda: None)
    found = measured(run)
    assert (found.used, found.at_most) == (None, False)


@pytest.mark.parametrize(
    ("settings", "planned", "timed"),
    [
        # A step of 4 sequences takes a second, and its forward pass a third of that.
        ({}, "1 of at most 4 sequences", "3.33 s"),
        ({"max_eval_steps": 25_000}, "1 of at most 100,000 sequences", "2.32 hours"),
        ({"eval_file": "held-out", "max_eval_steps": 3}, "2 of at most 12 sequences", "5 s"),
        (
            {"eval_file": "held-out"},
            "2 of unknown size without records; their time is not included",
            None,
        ),
        ({"do_eval": False}, None, None),
    ],
)
def test_evaluations_are_counted(run, monkeypatch, settings, planned, timed):
    measurement = Measured(4, 0.0, 1.0, None, False, 1)
    monkeypatch.setattr("keras_bert.tasks.pretraining.dry_run.measure", lambda *_: measurement)
    run = replace(
        run,
        settings=replace(run.settings, eval_batch_size=4, **settings),
        training=replace(run.training, save_checkpoints_steps=2),
    )
    lines = dict(re.match("  (.{18}) (.*)|", line).groups() for line in dry_run([run], ONE))
    found = {name and name.strip(): text for name, text in lines.items()}
    assert found["time of all steps"] == "3 s"
    assert found.get("evaluations") == planned
    assert found.get("with evaluations") == timed


def test_evaluation_time_excludes_recomputation(run, monkeypatch):
    measurement = Measured(4, 0.0, 1.0, None, False, 1)
    monkeypatch.setattr("keras_bert.tasks.pretraining.dry_run.measure", lambda *_: measurement)
    run = replace(
        run,
        settings=replace(run.settings, eval_batch_size=4, max_eval_steps=4),
        training=replace(run.training, gradient_checkpointing=True),
    )
    # Three steps of a second each; 16 sequences at a quarter of a second per four.
    assert "  with evaluations   4 s" in list(dry_run([run], ONE))


@pytest.mark.parametrize(
    ("used", "at_most", "words"),
    [(3 * 10**9, False, "3 GB"), (3 * 10**9, True, "at most 3 GB"), (None, False, "unknown")],
)
def test_report_shows_whether_the_memory_is_known(run, monkeypatch, used, at_most, words):
    measurement = Measured(4, 0.0, 1.0, used, at_most, 2 * 10**9)
    monkeypatch.setattr("keras_bert.tasks.pretraining.dry_run.measure", lambda *_: measurement)
    text = "\n".join(dry_run([run], ONE))
    assert f": {words} per device (estimate for 4: 2 GB)" in text
