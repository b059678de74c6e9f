"""Computes the steps, sequences, FLOPs and memory of a pre-training phase.

Nothing is measured (see training/cost.py), so the records need not exist yet.
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
        length: number of tokens of a sequence.
        predictions: number of predictions of a sequence; equal to `length` for the objective `ltr`.
        devices: number of devices of all workers.
        micro_batch: number of sequences of a micro-batch on each device.
        micro_batches: number of micro-batches of a full step.
        all_micro_batches: number of micro-batches of all steps.
        evaluations: number of evaluations in the phase.
        evaluated: number of examples of each evaluation; None if unknown without records.
        flops_per_sequence: FLOPs of the forward and backward pass.
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
    """Computes the plan of a phase; without `inputs`, the records need not exist yet.

    `devices` is the number of devices of all workers.

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
    """Returns the number of evaluations, and the number of examples of each (None if unknown)."""
    settings, training = run.settings, run.training
    if not settings.do_eval:
        return 0, 0
    every = training.evaluate_steps or training.save_checkpoints_steps
    count = -(-training.num_train_steps // every) if settings.eval_file else 1
    # Without records, the number is known only if the settings limit it.
    available = inputs.held_out.num_examples if inputs else sys.maxsize
    trained = training.num_train_steps * training.train_batch_size
    examples = settings.eval_examples(available, trained)
    return count, None if examples == sys.maxsize else examples


def _objective(data: Mapping[str, object]) -> str:
    """Returns the default objective for records with these settings, as inputs.py does."""
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

    `sequences` is the number of sequences of a micro-batch on each device, and `parts` is the
    number of micro-batches of a step.
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
