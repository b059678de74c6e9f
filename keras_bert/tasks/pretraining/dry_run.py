"""Estimates the cost of a pre-training run without writing any files.

Sizes, FLOPs and memory are computed (plan.py). Times are extrapolated from a few training steps on
this machine (measure.py). The time of an evaluation is computed from the time of a step, of which
the forward pass takes a fixed share.
"""

import math
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_bert.tasks.pretraining.measure import Measured, measure
from keras_bert.tasks.pretraining.phases import PhaseRun, check_phases, named
from keras_bert.tasks.pretraining.plan import Plan, make_plan
from keras_bert.tasks.pretraining.recipe import data_command
from keras_bert.training.run import check_batch_sizes


def dry_run(runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy) -> Iterator[str]:
    """Estimates the cost of each phase, measures a few of its steps, and yields lines of text.

    Without `input_file`, the records need not exist yet. Raises InputError if settings and records
    do not match, or the shape of the records is unknown.
    """
    inputs = check_phases(runs, strategy) if runs[0].settings.input_file else [None] * len(runs)
    plans = []
    for run, read in zip(runs, inputs, strict=True):
        with named(run.phase):
            check_batch_sizes(strategy, run.training, run.settings.eval_batch_size)
            plans.append(make_plan(run, read, strategy.num_replicas_in_sync))
    seconds = []
    for run, read, plan in zip(runs, inputs, plans, strict=True):
        yield from _planned(run, plan)
        measured = measure(run, read, plan, strategy)
        seconds.append(_seconds(plan, measured) + _evaluation_seconds(run, plan, measured))
        yield from _timed(run, plan, measured)
    if len(runs) > 1:
        yield f"time of all {len(runs)} phases: {_duration(sum(seconds))}"


def _planned(run: PhaseRun, plan: Plan) -> Iterator[str]:
    batch = run.training.train_batch_size
    yield run.phase.title if run.phase.recipe else "this run"
    if run.phase.data:
        yield _line("records", data_command(run.phase))
    ramp = run.training.batch_ramp_steps
    growth = f", reached after {ramp:,} steps" if ramp else ""
    yield _line("steps", f"{plan.steps:,} with a batch size of {batch:,} sequences{growth}")
    micro_batches = f"{plan.micro_batches:,} x {plan.micro_batch:,} sequences"
    where = f"each of {plan.devices} devices" if plan.devices > 1 else "one device"
    yield _line("full step", f"{micro_batches} on {where}")
    shape = f"of {plan.length} tokens with {plan.predictions} predictions"
    yield _line("sequences", f"{plan.sequences:,} {shape}")
    yield _line("tokens", f"{plan.sequences * plan.length:,}, including padding")
    each = f"{plan.flops_per_sequence:.3g} per sequence"
    yield _line("FLOPs", f"{plan.sequences * plan.flops_per_sequence:.3g}, {each}")
    if plan.evaluated is None:
        unknown = "of unknown size without records; their time is not included"
        yield _line("evaluations", f"{plan.evaluations:,} {unknown}")
    elif plan.evaluations:
        most = "" if run.settings.input_file else "at most "
        yield _line("evaluations", f"{plan.evaluations:,} of {most}{plan.evaluated:,} sequences")
    need = plan.memory
    yield _line(
        "memory per device",
        f"{_gigabytes(need.total)}: weights {_gigabytes(need.weights)}, gradients "
        f"{_gigabytes(need.gradients)}, optimizer {_gigabytes(need.optimizer)}, activations "
        f"{_gigabytes(need.activations)}",
    )


def _timed(run: PhaseRun, plan: Plan, measured: Measured | None) -> Iterator[str]:
    if measured is None:
        yield _line("time", "unknown: one sequence may not fit in this machine's free memory")
        return
    used = "unknown"
    if measured.used is not None:
        used = ("at most " if measured.at_most else "") + _gigabytes(measured.used)
    size = f"{measured.sequences} sequences at a time, {run.settings.mixed_precision}"
    estimate = f"estimate for {measured.sequences}: {_gigabytes(measured.expected)}"
    yield _line("measured", f"with {size}: {used} per device ({estimate})")
    full = measured.update_seconds + plan.micro_batches * measured.micro_batch_seconds
    sequences = plan.micro_batch * plan.micro_batches * plan.devices
    rate = sequences * plan.flops_per_sequence / full / plan.devices
    speed = f"{sequences / full:.3g} sequences/s, {rate:.3g} FLOP/s per device"
    yield _line("time per full step", f"{_duration(full)}: {speed}")
    steps, evaluations = _seconds(plan, measured), _evaluation_seconds(run, plan, measured)
    yield _line("time of all steps", _duration(steps))
    if evaluations:
        yield _line("with evaluations", _duration(steps + evaluations))


def _seconds(plan: Plan, measured: Measured | None) -> float:
    if measured is None:
        return math.nan
    updates = plan.steps * measured.update_seconds
    return updates + plan.all_micro_batches * measured.micro_batch_seconds


def _evaluation_seconds(run: PhaseRun, plan: Plan, measured: Measured | None) -> float:
    """Estimates the seconds of all evaluations; 0 if the number of examples is unknown."""
    if not plan.evaluated:
        return 0.0
    if measured is None:
        return math.nan
    # The backward pass costs as much as two forward passes, recomputation as one more.
    forward = measured.micro_batch_seconds / (4 if run.training.gradient_checkpointing else 3)
    return plan.evaluations * plan.evaluated * forward / (plan.micro_batch * plan.devices)


def _line(name: str, text: str) -> str:
    return f"  {name:18} {text}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s" if math.isfinite(seconds) else "unknown"
