"""Computes the steps, sequences, operations and memory of a phase.

It uses arithmetic only (training/cost.py), so the records need not exist yet.
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
    """The computed size and cost of a phase.

    Attributes:
        config: the model's configuration.
        objective: the name of the objective (objective.py).
        length: S.
        predictions: P; S if the objective predicts every next token.
        steps: number of steps.
        devices: number of devices.
        micro_batch: sequences per micro-batch and device.
        micro_batches: micro-batches per full step.
        all_micro_batches: micro-batches of all steps.
        evaluations: number of evaluations.
        evaluated: examples per evaluation; None if unknown because there are no records yet.
        flops_per_sequence: FLOPs of forward and backward pass per sequence.
        memory: memory per device.
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
    flops_per_sequence: int
    memory: Memory

    @property
    def sequences(self) -> int:
        """The total number of sequences in all steps."""
        return self.all_micro_batches * self.micro_batch * self.devices


def make_plan(run: PhaseRun, inputs: PretrainingInputs | None, devices: int) -> Plan:
    """Computes the plan of a phase for a number of devices.

    `inputs` are the phase's inputs, or None if there are no records yet.

    Raises:
        InputError: the config or the shape of the records is unknown, or the records are longer
            than the model's number of positions.
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
        flops_per_sequence=flops(config, length, predictions),
        memory=memory_of(run, config, length, predictions, micro_batch, parts),
    )


def _evaluations(run: PhaseRun, inputs: PretrainingInputs | None) -> tuple[int, int | None]:
    """Returns the number of evaluations of a phase, and of examples per evaluation."""
    settings, training = run.settings, run.training
    if not settings.do_eval:
        return 0, 0
    every = training.evaluate_steps or training.save_checkpoints_steps
    count = -(-training.num_train_steps // every) if settings.eval_file else 1
    # Without records, the number is known only if the settings limit it.
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
    raise InputError("--bert_config is missing; expected a JSON file or a bundled config's name")


def memory_of(
    run: PhaseRun, config: BertConfig, length: int, predictions: int, sequences: int, parts: int
) -> Memory:
    """Estimates the memory per device with the settings of a phase.

    Args:
        run: the phase.
        config: the model's configuration.
        length: S.
        predictions: P.
        sequences: sequences per micro-batch.
        parts: micro-batches per step.
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
