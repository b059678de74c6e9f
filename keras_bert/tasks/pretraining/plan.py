"""The arithmetic of a phase: steps, sequences, operations and memory.

Arithmetic alone (training/cost.py), for records that are there or are not yet.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.tasks.pretraining.inputs import PretrainingInputs
from keras_bert.tasks.pretraining.phases import PhaseRun
from keras_bert.training.cost import Memory, StepShape, flops, memory
from keras_bert.training.ramp import BatchRamp


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a phase.

    Attributes:
        config: the sizes.
        objective: the name of the objective (objective.py).
        length: S.
        predictions: P; S where each next token is predicted.
        steps: its steps.
        devices: the devices.
        micro_batch: sequences of a micro-batch on one device.
        micro_batches: micro-batches of a full step.
        all_micro_batches: those of all steps together.
        evaluations: how many there are.
        evaluated: examples of each; None where there are no records yet to tell.
        flops_a_sequence: forward and backward.
        memory: of one device.
    """

    config: BertConfig
    objective: str
    length: int
    predictions: int
    steps: int
    devices: int
    micro_batch: int
    micro_batches: int
    all_micro_batches: int
    evaluations: int
    evaluated: int | None
    flops_a_sequence: int
    memory: Memory

    @property
    def sequences(self) -> int:
        """The sequences of all steps."""
        return self.all_micro_batches * self.micro_batch * self.devices


def make_plan(run: PhaseRun, inputs: PretrainingInputs | None, devices: int) -> Plan:
    """Does the arithmetic of a phase.

    Args:
        run: the phase.
        inputs: its records, or None where there are none yet.
        devices: how many devices share a batch.

    Returns:
        The plan.

    Raises:
        InputError: nothing says the config or the records' shape, or the config has no room for
            their length.
    """
    settings, training = run.settings, run.training
    if inputs:
        config, objective, shape = inputs.config, inputs.objective, inputs.data
        length, predictions = shape.max_seq_length, shape.max_predictions_per_seq
    else:
        objective = settings.objective or _objective(run.phase.data)
        config = replace(_config(run), is_decoder=objective == "ltr")
        length, predictions = settings.max_seq_length, settings.max_predictions_per_seq
    if objective == "ltr":
        predictions = length
    if not (length and predictions):
        raise InputError(
            "--dry_run without --input_file needs --max_seq_length and --max_predictions_per_seq"
        )
    if length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={length}, but the config allows max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    parts = training.gradient_accumulation_steps
    ramp = BatchRamp(parts, training.batch_ramp_steps)
    micro_batch = training.train_batch_size // (devices * parts)
    evaluations, evaluated = _evaluations(run, inputs)
    return Plan(
        config=config,
        objective=objective,
        length=length,
        predictions=predictions,
        steps=training.num_train_steps,
        devices=devices,
        micro_batch=micro_batch,
        micro_batches=parts,
        all_micro_batches=ramp.before(training.num_train_steps),
        evaluations=evaluations,
        evaluated=evaluated,
        flops_a_sequence=flops(config, length, predictions),
        memory=memory_of(run, config, length, predictions, micro_batch, parts),
    )


def _evaluations(run: PhaseRun, inputs: PretrainingInputs | None) -> tuple[int, int | None]:
    """Counts the evaluations of a phase, and the examples of each."""
    settings, training = run.settings, run.training
    if not settings.do_eval:
        return 0, 0
    every = training.evaluate_steps or training.save_checkpoints_steps
    count = -(-training.num_train_steps // every) if settings.eval_file else 1
    # Without records they are as many as are asked for, if that is said.
    available = inputs.held_out.num_examples if inputs else sys.maxsize
    examples = settings.eval_examples(available)
    return count, None if examples == sys.maxsize else examples


def _objective(data: Mapping[str, object]) -> str:
    """The default objective for records (inputs.py)."""
    return "mlm" if data.get("next_sentence") == "none" else "mlm_nsp"


def _config(run: PhaseRun) -> BertConfig:
    if run.settings.bert_config:
        return BertConfig.from_json(run.settings.bert_config)
    if run.settings.init_checkpoint:
        return open_checkpoint(run.settings.init_checkpoint).config
    raise InputError("--bert_config is missing: a JSON file or a bundled config's name")


def memory_of(
    run: PhaseRun, config: BertConfig, length: int, predictions: int, sequences: int, parts: int
) -> Memory:
    """Estimates the memory of a device with the settings of a phase.

    Args:
        run: the phase.
        config: the sizes.
        length: S.
        predictions: P.
        sequences: those of a micro-batch.
        parts: micro-batches of a step.

    Returns:
        The bytes of each part.
    """
    step = StepShape(
        length,
        predictions,
        sequences,
        micro_batches=parts,
        compute_bytes=4 if run.settings.mixed_precision == "float32" else 2,
        state_bytes=4 if run.settings.optimizer_state_dtype == "float32" else 2,
        gradient_checkpointing=run.training.gradient_checkpointing,
    )
    return memory(config, step)
