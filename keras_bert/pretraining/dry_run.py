"""Estimates the cost of pre-training for --dry_run: parameters, operations, memory."""

from collections.abc import Sequence

import tensorflow as tf

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.pretraining.inputs import PretrainingInputs
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.run import check_phases
from keras_bert.training.objective import check_batch_sizes
from keras_bert.training.optimizers import OPTIMIZERS

_MEMORY = ("weights", "gradients", "optimizer", "activations")


def dry_run(phases: Sequence[Phase], strategy: tf.distribute.Strategy) -> list[str]:
    """Estimates the cost of pre-training without running a step.

    Returns the lines to print. Without `input_file`, the records need not exist yet.

    Raises:
        InputError: settings and records do not match, or the shape of the records is unknown.
    """
    has_records = bool(phases[0].settings.input_file)
    inputs = check_phases(phases, strategy) if has_records else [None] * len(phases)
    lines, flop, devices = [], 0.0, strategy.num_replicas_in_sync
    for phase, phase_inputs in zip(phases, inputs, strict=True):
        training = phase.training
        with phase.named():
            check_batch_sizes(strategy, training, phase.settings.eval_batch_size)
            cost = estimate(phase, phase_inputs, devices)
        flop += cost["flop"]
        memory = {name: cost[name] / 1e9 for name in _MEMORY}
        parts = ", ".join(f"{name} {size:.3g}" for name, size in memory.items())
        lines += [
            phase.title or "this run",
            *([f"  records     {data_command(phase)}"] if phase.data else []),
            f"  parameters  {cost['parameters']:,}",
            f"  steps       {training.num_train_steps:,} of {training.train_batch_size:,} "
            "sequences",
            f"  tokens      {cost['tokens']:,}, including padding",
            f"  FLOP        {cost['flop_per_step']:.3g} per step, {cost['flop']:.3g} in total",
            f"  memory      {sum(memory.values()):.3g} GB per device: {parts}",
        ]
    hours = flop / 3600e12
    return [
        *lines,
        f"{hours:.3g} hours at 1 TFLOP/s of all devices, {hours / 100:.3g} at 100 TFLOP/s",
    ]


def estimate(phase: Phase, inputs: PretrainingInputs | None, devices: int) -> dict[str, int]:
    """Computes the cost of a phase: counts, FLOP, and bytes per device for each part of _MEMORY.

    Without `inputs`, config and shape of the records are those of the settings. Evaluations and the
    memory of the program itself are not counted.

    Symbols: S length, P predictions of a sequence, H hidden size, I intermediate size, L layers, N
    heads, V vocabulary.
    """
    config, shape = (inputs.config, inputs.data) if inputs else (_config_of(phase), phase.settings)
    length, predictions = shape.max_seq_length, shape.max_predictions_per_seq
    if not (length and predictions):
        raise InputError(
            "--dry_run without --input_file needs --max_seq_length and --max_predictions_per_seq"
        )
    if length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={length}, but the config allows max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    settings, training = phase.settings, phase.training
    predictions = length if settings.objective == "ltr" else predictions
    states = len(OPTIMIZERS[settings.optimizer].state_names)
    parts = training.gradient_accumulation_steps
    rows = training.train_batch_size // (devices * parts)  # of a micro-batch on each device
    sequences = training.num_train_steps * training.train_batch_size
    h, wide, vocab_size = config.hidden_size, config.intermediate_size, config.vocab_size
    # The backward pass costs as much as two forward passes.
    flop = int(3 * config.flops_per_row(length, predictions))
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    # The encoder, the masked-LM head (its kernel is the embedding table), and the NSP head.
    parameters = config.num_encoder_weights + (h * h + 3 * h + vocab_size) + (2 * h + 2)
    # A layer keeps 12 H values of a token (query, key, value and context, each twice, two outputs,
    # two sums), 2 I around the activation, and 2 N S scores and probabilities; or only its input.
    compute_bytes = 4 if settings.mixed_precision == "float32" else 2
    full = 12 * h + 2 * wide + 2 * heads * length
    stored = layers * h + 2 * full if training.gradient_checkpointing else (layers + 1) * full
    logits = predictions * vocab_size * (compute_bytes + 3 * 4)
    activations = length * (stored * compute_bytes + (4 + compute_bytes) * h) + logits
    return {
        "parameters": parameters,
        "tokens": sequences * length,
        "flop_per_step": training.train_batch_size * flop,
        "flop": sequences * flop,
        "weights": parameters * (4 if compute_bytes == 4 else 6),  # and copies in 2 bytes
        "gradients": parameters * 4 * (1 if parts == 1 else 2),
        "optimizer": parameters
        * states
        * (4 if settings.optimizer_state_dtype == "float32" else 2),
        "activations": rows * activations,
    }


def _config_of(phase: Phase) -> BertConfig:
    if phase.settings.bert_config:
        return BertConfig.from_json(phase.settings.bert_config)
    return open_checkpoint(phase.settings.init_checkpoint).config


def data_command(phase: Phase) -> str:
    """Returns the command that creates a phase's records, with placeholders such as TEXT."""
    output = phase.settings.input_file or f"records-{phase.settings.max_seq_length}"
    settings = [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in phase.data.items()
    ]
    return " ".join(
        [
            "keras-bert create-pretraining-data --input_file=TEXT --vocab_file=VOCAB",
            f"--output_dir={output}",
            *settings,
        ]
    )
