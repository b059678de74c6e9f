"""Measures the time and memory of a few steps of a pre-training phase on this machine.

The time of a micro-batch is the difference in time between a step of two micro-batches and a step
of one; the rest of the time of a step is the update. If a whole batch is slow or does not fit in
memory, it is therefore enough to measure a part of it.
"""

import contextlib
import functools
import gc
import time
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from keras_bert.common import host_memory
from keras_bert.data.record_errors import explain_record_errors
from keras_bert.tasks.pretraining.batches import RecordSource, training_batches
from keras_bert.tasks.pretraining.inputs import PretrainingInputs
from keras_bert.tasks.pretraining.phases import PhaseRun
from keras_bert.tasks.pretraining.plan import Plan, memory_of
from keras_bert.tasks.pretraining.run import make_state
from keras_bert.training.backend import BACKEND, free, make_train_steps, peak_memory
from keras_bert.training.distribute import distribute

# The maximum size of a measured micro-batch on a CPU. Larger ones would not increase the
# throughput, and a step of this size already takes seconds.
CPU_SEQUENCES, CPU_FLOPS = 8, 4e11
WARM_STEPS, MEASURED_STEPS = 2, 3


@dataclass(frozen=True)
class Measured:
    """The time and memory of the measured steps.

    Attributes:
        sequences: number of sequences of the measured micro-batch on each device.
        update_seconds: time of a step without its micro-batches.
        micro_batch_seconds: time of a micro-batch of the plan's size, which may be larger than the
            measured one.
        used: peak memory of a device in bytes, in a step of one measured micro-batch; on CPUs
            including the memory to compile and run the program; None if unknown.
        at_most: whether `used` is only an upper bound. On CPUs and with JAX, the peak is that since
            the start of the program, so it may come from an earlier phase or a larger micro-batch.
        expected: the estimate of `used`, in bytes.
    """

    sequences: int
    update_seconds: float
    micro_batch_seconds: float
    used: int | None
    at_most: bool
    expected: int


def measure(
    run: PhaseRun,
    inputs: PretrainingInputs | None,
    plan: Plan,
    strategy: tf.distribute.Strategy,
) -> Measured | None:
    """Measures training steps of a phase, with as many sequences as fit in memory.

    Without `inputs`, the records are random tokens. The result is None if not even one sequence
    fits in memory.

    Raises:
        InputError: the records are damaged.
    """
    on_cpu, sequences = peak_memory() is None, plan.micro_batch

    def needed(sequences: int, micro_batches: int) -> int:
        shape = plan.config, plan.length, plan.predictions
        return memory_of(run, *shape, sequences, micro_batches).total

    if on_cpu:
        affordable = max(1, int(CPU_FLOPS // plan.flops_per_sequence))
        sequences = min(sequences, CPU_SEQUENCES, affordable)
        available = _available_memory()
        # Half, since a program takes up to twice the estimate (docs/guides/recipes.md).
        while (
            sequences
            and available is not None
            and needed(sequences, 2) * plan.devices > 0.5 * available
        ):
            sequences //= 2
    while sequences:
        try:
            gc.collect()  # Frees the program of an earlier phase.
            before = _peak(on_cpu, plan.devices)
            once = _step_seconds(run, inputs, plan, strategy, sequences, 1)
            used = _peak(on_cpu, plan.devices)
            update, micro_batch = 0.0, once
            if plan.micro_batches > 1 or sequences < plan.micro_batch:
                gc.collect()
                twice = _step_seconds(run, inputs, plan, strategy, sequences, 2)
                # On a busy machine the difference may be noise, so it is limited to a range.
                per_micro_batch = min(max(twice - once, once / 2), twice / 2)
                update = max(0.0, once - per_micro_batch)
                micro_batch = per_micro_batch * plan.micro_batch / sequences
        except (tf.errors.ResourceExhaustedError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            sequences //= 2
            continue
        at_most = used is not None and used == before and (on_cpu or BACKEND == "jax")
        return Measured(sequences, update, micro_batch, used, at_most, needed(sequences, 1))
    return None


def _step_seconds(
    run: PhaseRun,
    inputs: PretrainingInputs | None,
    plan: Plan,
    strategy: tf.distribute.Strategy,
    sequences: int,
    micro_batches: int,
) -> float:
    """Returns the seconds that a step takes after warm-up.

    `sequences` is the number of sequences of each micro-batch on each device.
    """
    batch_size = sequences * plan.devices * micro_batches
    if inputs is None:
        batches = _random_batches(plan, batch_size)
    else:
        left_to_right = plan.objective == "ltr"
        source = RecordSource(inputs.data, plan.config.vocab_size, left_to_right)
        batches = training_batches(source, batch_size, run.settings.random_seed)
    state = make_state(run.settings, run.training, strategy, plan.config, plan.objective)
    one, seconds = np.array(1, np.int32), []
    try:
        training = replace(run.training, gradient_accumulation_steps=micro_batches)
        train_steps = make_train_steps(strategy, state, training)
        iterator = iter(distribute(strategy, batches))
        with (
            explain_record_errors(inputs.data, plan.config.vocab_size)
            if inputs
            else contextlib.nullcontext()
        ):
            for _ in range(WARM_STEPS + MEASURED_STEPS):
                start = time.perf_counter()
                train_steps(iterator, one).numpy()  # Waits until the step is done.
                seconds.append(time.perf_counter() - start)
    finally:
        # A smaller micro-batch may fit in the memory that these variables use.
        free([*state.model.variables, *state.optimizer.variables])
    return min(seconds[WARM_STEPS:])  # Other load on the machine only adds time.


def _random_batches(plan: Plan, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of random tokens without padding; padding would take the same time."""
    rng = np.random.default_rng(0)
    rows, labels = (batch_size, plan.length), (batch_size, plan.predictions)

    def below(limit: int, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, limit, shape, dtype=np.int32)

    batch = {
        "input_ids": below(plan.config.vocab_size, rows),
        "input_mask": np.ones(rows, np.int32),
        "segment_ids": below(2, rows),
        "next_sentence_labels": below(2, (batch_size,)),
        "example_weights": np.ones([batch_size], np.float32),
        "dropout_seed": below(2**31 - 1, (batch_size,)),
    }
    predicted = "next_token" if plan.objective == "ltr" else "masked_lm"
    batch[f"{predicted}_ids"] = below(plan.config.vocab_size, labels)
    batch[f"{predicted}_weights"] = np.ones(labels, np.float32)
    if predicted == "masked_lm":
        batch["masked_lm_positions"] = below(plan.length, labels)
    return tf.data.Dataset.from_tensors(batch).repeat()


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, tf.errors.ResourceExhaustedError) or "RESOURCE_EXHAUSTED" in str(error)


def _available_memory() -> int | None:
    """Returns the memory that a phase can use on a CPU, in bytes; None if unknown.

    It is the memory that is free, and the memory that the earlier phases use.
    """
    free_now, held, start = host_memory.available(), host_memory.resident(), _initial_resident()
    return None if None in (free_now, held, start) else free_now + held - start


def _peak(on_cpu: bool, devices: int) -> int | None:
    """Returns the peak memory of a device in bytes, as defined for `Measured.used`."""
    if not on_cpu:
        return peak_memory()
    peak, start = host_memory.peak_resident(), _initial_resident()
    return None if None in (peak, start) else (peak - start) // devices


@functools.cache
def _initial_resident() -> int | None:
    """Returns the resident memory of this process in bytes at the first call; None if unknown.

    The first call comes before all measurements; later calls return the same value.
    """
    return host_memory.resident()
