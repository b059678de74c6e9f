"""Pre-trains a model in phases, each of which starts from the model of the previous one.

    phase-1/ -> weights (with continue_optimizer, also optimizer state) -> phase-2/ -> ... -> model/

Every phase is an ordinary run in its own folder, so the same command resumes an interrupted phase:

1. Find and check the inputs.
2. Create the model, newly initialized or from a checkpoint, and the run's folder.
3. Train and evaluate; compare with the unigram baseline.
4. Write model/ and results.json.

The parent folder contains run.json, results.json and model/ for all phases together. If there are
several workers, worker 0 writes these files.
"""

import gc
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, ModelDescription
from keras_bert.checkpoints.model_directory import check_replaceable, save_model_directory
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json
from keras_bert.models import BertPretrainer
from keras_bert.models.memory import check_batch_fits
from keras_bert.pretraining.batches import (
    BatchRamp,
    RecordSource,
    evaluation_batches,
    training_batches,
)
from keras_bert.pretraining.inputs import PretrainingInputs, find_inputs
from keras_bert.pretraining.objective import (
    OBJECTIVES,
    PREDICTIONS,
    label_weights,
    pretraining_objective,
)
from keras_bert.pretraining.recipe import Phase, data_command
from keras_bert.pretraining.records import PretrainingData, explain_record_errors
from keras_bert.pretraining.settings import SAMPLE_SIZE, PretrainingSettings
from keras_bert.tasks.run_card import run_card
from keras_bert.text.settings import TokenizerSettings
from keras_bert.training.backend import free, make_evaluate
from keras_bert.training.checkpoint import list_checkpoints, restore_latest
from keras_bert.training.cluster import (
    check_agreement,
    convert_lost_worker_errors,
    gather,
    num_workers,
    share_of,
)
from keras_bert.training.log import progress
from keras_bert.training.loop import Evaluation, train
from keras_bert.training.objective import (
    AfterBatch,
    TrainingRun,
    TrainingSettings,
    TrainState,
    check_batch_sizes,
    check_train_batch_fits,
)
from keras_bert.training.optimizers import AdamWeightDecay, Lamb, LossScale
from keras_bert.training.run_folder import flat, is_finished, log_finished, running
from keras_bert.training.schedules import LinearWarmupDecay
from keras_bert.training.strategy import check_state_dtype, dtype_policy, without_autotuning

# Records for evaluation may have stored masks and another number of passes.
_MAY_DIFFER_IN_EVALUATION = ("dynamic", "dupe_factor")
_MEMORY = ("weights", "gradients", "optimizer", "activations")


# --- phases ---


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a recipe, ready to run; only the first phase uses `settings.init_checkpoint`."""

    phase: Phase
    settings: PretrainingSettings
    training: TrainingSettings
    record: Mapping[str, object]


def pretrain_phases(
    runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy, output_dir: Path
) -> dict[str, float]:
    """Pre-trains phase by phase, or resumes the interrupted phase.

    `output_dir` gets a folder `phase-N` for each phase, model/ and results.json of the last phase,
    and a run.json with the settings of the last phase and those that differ in the others. Returns
    the final metrics of the last phase, as in results.json.

    Raises:
        InputError: as for `pretrain`, with recipe and phase in the message. Also, before anything
            is written: the records do not match the recipe, or the phases do not match each other
            (vocabulary, casing, config or objective).
    """
    inputs = check_phases(runs, strategy)
    check_replaceable(output_dir / "model")
    all_phases = {**_record(runs, inputs), **workers_of(strategy)}
    lengths = {f"phase-{number}": asdict(run.training) for number, run in enumerate(runs, 1)}
    check_agreement(strategy, flat(all_phases) | flat(lengths))
    if is_finished(output_dir, all_phases, strategy):
        log_finished(output_dir)
        return read_json(output_dir / "results.json")
    with running(output_dir, all_phases, strategy) as folder:
        for number, run in enumerate(runs, 1):
            gc.collect()  # The programs of two phases may not fit in memory together.
            steps = run.training.num_train_steps
            logging.info("Starting phase %d of %d: %d steps", number, len(runs), steps)
            folder_of_phase = output_dir / f"phase-{number}"
            settings, record = run.settings, dict(run.record)
            if number > 1:
                previous = f"phase-{number - 1}"
                # A phase resumes from its own checkpoints only if all workers have some.
                checkpoints = list_checkpoints(folder_of_phase / "checkpoints")
                has_started = all(gather(strategy, bool(checkpoints)))
                continues_optimizer = run.phase.continue_optimizer and not has_started
                settings = _start_from(settings, output_dir / previous, continues_optimizer)
                record["init_checkpoint"] = previous
            with named(run.phase):
                results = pretrain(
                    settings,
                    TrainingRun(run.training, strategy, folder_of_phase, record, is_part=True),
                )
        if folder == output_dir:
            with atomic_path(output_dir / "model") as partial:
                shutil.copytree(output_dir / f"phase-{len(runs)}" / "model", partial)
        write_json(folder / "results.json", results)
    return results


def check_phases(
    runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy
) -> list[PretrainingInputs]:
    """Finds the inputs of each phase, and checks that they match the recipe and each other.

    The inputs of each phase are found as if it had no previous phase.

    Raises:
        InputError: the inputs of a phase are unusable, or do not match.
    """
    found = []
    for run in runs:
        with named(run.phase):
            found.append(find_inputs(run.settings, run.training.num_train_steps))
            found[-1].data.share(*share_of(strategy))  # Raises if there are too few files.
            check_batch_sizes(strategy, run.training, run.settings.eval_batch_size)
            check_state_dtype(strategy, run.settings.optimizer_state_dtype)
            _check_records(run.phase, found[-1])
            first, requested = found[0].objective, found[-1].objective
            continues_optimizer = run.phase.continue_optimizer
            if first != requested and (continues_optimizer or "ltr" in (first, requested)):
                expected = "ltr in all phases or in none"
                if continues_optimizer:
                    expected = "the same objective with continue_optimizer"
                raise InputError(
                    f"objective {requested} cannot follow {first}; expected {expected}"
                )
            for name in ("vocab", "tokenizer_settings", "config"):
                if getattr(found[-1], name) != getattr(found[0], name):
                    raise InputError(
                        f"{run.settings.input_file}: {name} differs from that of the records of "
                        f"phase 1, {runs[0].settings.input_file}; expected the same"
                    )
    return found


def _start_from(
    settings: PretrainingSettings, previous: Path, continues_optimizer: bool
) -> PretrainingSettings:
    init_run = str(previous) if continues_optimizer else ""
    # No bert_config, because the checkpoint has the config with the size of the vocabulary.
    return replace(settings, init_checkpoint=str(previous), init_run=init_run, bert_config="")


def _check_records(phase: Phase, inputs: PretrainingInputs) -> None:
    for folder, manifest in (inputs.data.manifests | inputs.held_out.manifests).items():
        settings = manifest["settings"]
        if folder not in inputs.data.manifests:
            settings = {n: v for n, v in settings.items() if n not in _MAY_DIFFER_IN_EVALUATION}
        settings = {**settings, **TokenizerSettings.read(folder, settings).effective()}
        for name, value in phase.data.items():
            if name in settings and settings[name] != value:
                raise InputError(
                    f"data: {name} is {json.dumps(value)}, but {folder} was made with "
                    f"{json.dumps(settings[name])}"
                )


def _record(runs: Sequence[PhaseRun], inputs: Sequence[PretrainingInputs]) -> dict[str, object]:
    """Returns the settings of the last phase and, as "phase-N", those that differ in the others."""
    records = [
        {**run.record, **read.record(), "data": dict(run.phase.data)}
        for run, read in zip(runs, inputs, strict=True)
    ]
    last = records[-1]
    others = {
        f"phase-{number}": {name: v for name, v in record.items() if v != last.get(name)}
        for number, record in enumerate(records[:-1], 1)
    }
    return {**last, "phases": len(runs), **others}


@contextmanager
def named(phase: Phase) -> Iterator[None]:
    """Adds the recipe and the phase, if there is a recipe, to InputErrors raised in the block."""
    try:
        yield
    except InputError as error:
        if not phase.recipe:
            raise
        raise InputError(f"{phase.title}: {error}") from error


# --- a run ---


def pretrain(settings: PretrainingSettings, run: TrainingRun) -> dict[str, float]:
    """Pre-trains a BERT model, or resumes a run, and saves the model.

    Returns:
        {metric: value} as in results.json: the final metrics and, after training, "step", the
        number of steps.

    Raises:
        InputError: the records, config, vocabulary, checkpoint or folder are unusable or do not
            match each other.
        EndedEarly: the run received SIGTERM, or a worker was lost.
    """
    training, strategy, output_dir = run.training, run.strategy, run.output_dir
    inputs = find_inputs(settings, training.num_train_steps)
    inputs.data.share(*share_of(strategy))  # Raises if there are too few files.
    check_batch_sizes(strategy, training, settings.eval_batch_size)
    check_state_dtype(strategy, settings.optimizer_state_dtype)
    check_replaceable(output_dir / "model")
    run = replace(run, record={**run.record, **inputs.record(), **workers_of(strategy)})
    check_agreement(strategy, flat({**run.record, **asdict(training)}))
    if is_finished(output_dir, run.record, strategy):
        log_finished(output_dir, run.is_part)
        return read_json(output_dir / "results.json")
    # Load the weights first, so that no folder is created if they do not match the model.
    state = make_state(
        settings, training, strategy, inputs.config, inputs.objective, inputs.checkpoint
    )
    workers, length = num_workers(strategy), inputs.data.max_seq_length
    if settings.do_train:
        check_train_batch_fits(training, workers, inputs.config, length)
    if settings.do_eval:
        rows = settings.eval_batch_size
        check_batch_fits(inputs.config, rows // workers, length, f"--eval_batch_size={rows}")
    with running(output_dir, run.record, strategy) as folder:
        results = _train_and_evaluate(settings, run, inputs, state)
        if settings.do_train and folder == output_dir:
            description = ModelDescription(inputs.config, inputs.vocab, inputs.tokenizer_settings)
            card = run_card(None, description, flat(run.record), results)
            save_model_directory(output_dir / "model", state.model, replace(description, card=card))
        write_json(folder / "results.json", results)
    # The model of the next phase may not fit in memory together with this one.
    free([*state.model.variables, *state.optimizer.variables])
    return results


def workers_of(strategy: tf.distribute.Strategy) -> dict[str, int]:
    """Returns {"num_workers": ...} for run.json, since batches depend on it; {} for one worker."""
    workers = num_workers(strategy)
    return {"num_workers": workers} if workers > 1 else {}


def make_state(
    settings: PretrainingSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    config: BertConfig,
    objective: str,
    checkpoint: Checkpoint | None = None,
) -> TrainState:
    """Creates the model, optimizer and loss scale as they are before the first step of a run.

    Without a checkpoint, the weights are newly initialized. There is a loss scale only for float16.

    Raises:
        InputError: the checkpoint's weights do not match the model, or the last checkpoint of the
            run `settings.init_run` is missing or damaged.
    """
    keras.utils.set_random_seed(settings.random_seed)
    rate, attention_rate = settings.dropout_prob, settings.attention_dropout_prob
    rates = {
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate if attention_rate is None else attention_rate,
    }
    config = replace(config, **{name: p for name, p in rates.items() if p is not None})
    with convert_lost_worker_errors(strategy), strategy.scope():
        model = BertPretrainer(config, dtype=dtype_policy(settings.mixed_precision))
        if checkpoint:
            logging.info("%s", checkpoint.load_into(model))
        if objective != "mlm_nsp":
            # No loss depends on these two layers; weight decay alone would shrink them.
            model.encoder.pooler.trainable = model.next_sentence.trainable = False
        schedule = LinearWarmupDecay(
            settings.learning_rate,
            settings.schedule_steps or training.num_train_steps,
            settings.warmup_steps(training.num_train_steps),
        )
        state_dtype = settings.optimizer_state_dtype
        if settings.optimizer == "lamb":
            optimizer = Lamb(schedule, state_dtype=state_dtype)
        else:
            optimizer = AdamWeightDecay(
                schedule, bias_correction=settings.bias_correction, state_dtype=state_dtype
            )
        optimizer.build(model.trainable_variables)
        loss_scale = LossScale(optimizer) if settings.mixed_precision == "float16" else None
        if settings.init_run:
            _restore_last(Path(settings.init_run), model, optimizer)
    return TrainState(model, optimizer, pretraining_objective(objective), loss_scale)


def _restore_last(run: Path, model: BertPretrainer, optimizer: keras.optimizers.Optimizer) -> None:
    checkpoints, last = run / "checkpoints", read_json(run / "results.json")["step"]
    if restore_latest(checkpoints, model, optimizer) != last:
        raise InputError(f"{checkpoints}: has no complete checkpoint of step {last}; expected one")


def _train_and_evaluate(
    settings: PretrainingSettings, run: TrainingRun, inputs: PretrainingInputs, state: TrainState
) -> dict[str, float]:
    training, strategy = run.training, run.strategy
    vocab_size, share = inputs.config.vocab_size, share_of(strategy)
    source, held_out = (
        RecordSource(data, vocab_size, inputs.objective == "ltr", share)
        for data in (inputs.data, inputs.held_out)
    )
    score = make_evaluate(strategy, state.model, state.objective, jit_compile=training.jit_compile)
    batch_size = settings.eval_batch_size
    trained = training.num_train_steps * training.train_batch_size
    evaluated = settings.eval_examples(inputs.held_out.num_examples, trained)

    def evaluate(after_batch: AfterBatch | None = None) -> dict[str, float]:
        batches = evaluation_batches(held_out, batch_size, -(-evaluated // batch_size))
        with (
            explain_record_errors(inputs.held_out, vocab_size),
            progress("evaluating", evaluated, "examples", silent=share[0] > 0) as advance,
        ):

            def after_each() -> None:
                advance(batch_size)
                if after_batch:
                    after_batch()

            return score(batches, after_each)

    ramp = BatchRamp(training.gradient_accumulation_steps, training.batch_ramp_steps)

    def batches_from(step: int) -> tf.data.Dataset:
        size, seed = training.train_batch_size, settings.random_seed
        return training_batches(source, size, seed, step, ramp)

    metrics = None
    if settings.do_train:
        with explain_record_errors(inputs.data, vocab_size):
            evaluates = settings.do_eval and settings.eval_file
            evaluation = Evaluation(evaluate) if evaluates else None
            metrics = train(run, state, batches_from, evaluation)
    results = {"step": training.num_train_steps} if settings.do_train else {}
    if settings.do_eval:
        if not metrics:
            kind = "held-out" if settings.eval_file else "training"
            count = inputs.held_out.num_examples
            logging.info("Evaluating on %d of %d %s records", evaluated, count, kind)
            metrics = evaluate()
        results |= metrics
        with (
            explain_record_errors(inputs.data, vocab_size),
            explain_record_errors(inputs.held_out, vocab_size),
        ):
            # Reading many more records than the model was trained on could take longer than the
            # training.
            sample = min(SAMPLE_SIZE, trained) if settings.do_train else SAMPLE_SIZE
            results |= unigram_baseline(
                inputs.data, inputs.held_out, vocab_size, inputs.objective, sample
            )
    non_finite = [name for name, value in results.items() if not np.isfinite(value)]
    if non_finite:
        names = ", ".join(non_finite)
        raise InputError(
            f"evaluation: got inf or NaN for {names}; expected finite numbers. No results are saved"
        )
    return results


# --- unigram baseline ---


def unigram_baseline(
    train: PretrainingData,
    held_out: PretrainingData,
    vocab_size: int,
    objective: str = "mlm_nsp",
    max_examples: int = SAMPLE_SIZE,
) -> dict[str, float]:
    """Scores predictions for `held_out` that depend only on frequencies in `train`.

    A pre-trained model, which knows the context, should have a lower loss and a higher accuracy.
    The frequencies are those of the tokens to predict and of the next-sentence labels. The count of
    every token is increased by 1, so that no probability is 0. About `max_examples` records of
    `train` and of `held_out` are read.

    Returns:
        "unigram_NAME_accuracy" (a fraction) for each prediction of the objective, and
        "unigram_NAME_loss" (nats per token) for the prediction of tokens. NAME is a key of
        objective.PREDICTIONS, such as "masked_lm".
    """
    trained = expected = _counts(train, vocab_size, objective, max_examples)
    if held_out is not train:
        expected = _counts(held_out, vocab_size, objective, max_examples)
    predictions = OBJECTIVES[objective]
    tokens = predictions[0]
    probabilities = (trained[tokens] + 1) / (trained[tokens] + 1).sum()
    nats = -(expected[tokens] * np.log(probabilities)).sum() / expected[tokens].sum()
    return {f"unigram_{tokens}_loss": float(nats)} | {
        f"unigram_{name}_accuracy": float(
            expected[name][trained[name].argmax()] / expected[name].sum()
        )
        for name in predictions
    }


def _counts(
    data: PretrainingData, vocab_size: int, objective: str, max_examples: int
) -> dict[str, np.ndarray]:
    """Returns {prediction: total label weight of each token, [V], or next-sentence label, [2]}."""
    counts = {
        name: np.zeros([2 if name == "next_sentence" else vocab_size])
        for name in OBJECTIVES[objective]
    }
    batch_size = min(1000, data.num_examples)
    max_batches = -(-max_examples // batch_size)
    source = RecordSource(data, vocab_size, left_to_right=objective == "ltr")
    batches = evaluation_batches(source, batch_size, max_batches)
    for batch in without_autotuning(batches).as_numpy_iterator():
        for name, count in counts.items():
            labels = batch[PREDICTIONS[name].labels].ravel()
            count += np.bincount(labels, label_weights(batch, name).ravel(), len(count))
    return counts


# --- dry run ---


def dry_run(runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy) -> list[str]:
    """Estimates the cost of pre-training without running a step.

    Returns the lines to print. Without `input_file`, the records need not exist yet.

    Raises:
        InputError: settings and records do not match, or the shape of the records is unknown.
    """
    inputs = check_phases(runs, strategy) if runs[0].settings.input_file else [None] * len(runs)
    lines, flop, devices = [], 0.0, strategy.num_replicas_in_sync
    for run, found in zip(runs, inputs, strict=True):
        with named(run.phase):
            check_batch_sizes(strategy, run.training, run.settings.eval_batch_size)
            cost = estimate(run, found, devices)
        flop += cost["flop"]
        memory = {name: cost[name] / 1e9 for name in _MEMORY}
        parts = ", ".join(f"{name} {size:.3g}" for name, size in memory.items())
        lines += [
            run.phase.title if run.phase.recipe else "this run",
            *([f"  records     {data_command(run.phase)}"] if run.phase.data else []),
            f"  parameters  {cost['parameters']:,}",
            f"  steps       {run.training.num_train_steps:,} of {run.training.train_batch_size:,} "
            f"sequences",
            f"  tokens      {cost['tokens']:,}, including padding",
            f"  FLOP        {cost['flop_per_step']:.3g} per step, {cost['flop']:.3g} in total",
            f"  memory      {sum(memory.values()):.3g} GB per device: {parts}",
        ]
    hours = flop / 3600e12
    return [
        *lines,
        f"{hours:.3g} hours at 1 TFLOP/s of all devices, {hours / 100:.3g} at 100 TFLOP/s",
    ]


def estimate(run: PhaseRun, inputs: PretrainingInputs | None, devices: int) -> dict[str, int]:
    """Computes the cost of a phase: counts, FLOP, and bytes per device for each part of _MEMORY.

    Without `inputs`, config and shape of the records are those of the settings. Evaluations and the
    memory of the program itself are not counted.

    Symbols: S length, P predictions of a sequence, H hidden size, I intermediate size, L layers, N
    heads, V vocabulary.
    """
    config, shape = (inputs.config, inputs.data) if inputs else (_config_of(run), run.settings)
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
    settings, training = run.settings, run.training
    parts = training.gradient_accumulation_steps
    rows = training.train_batch_size // (devices * parts)  # of a micro-batch on each device
    ramp = BatchRamp(parts, training.batch_ramp_steps)
    sequences = ramp.before(training.num_train_steps) * rows * devices
    h, wide, vocab_size = config.hidden_size, config.intermediate_size, config.vocab_size
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    predictions = length if settings.objective == "ltr" else predictions
    # The encoder, the masked-LM head (its kernel is the embedding table), and the NSP head.
    parameters = config.num_encoder_weights + (h * h + 3 * h + vocab_size) + (2 * h + 2)
    # Products with the weights, attention scores and contexts; then both heads and the pooler. A
    # multiply-add is two operations, and the backward pass costs as much as two forward passes.
    layer = length * (4 * h * h + 2 * h * wide) + 2 * length * length * h
    output = predictions * (h * h + h * vocab_size) + h * h + 2 * h
    flop = 3 * 2 * (layers * layer + output)
    # A layer keeps 12 H values of a token (query, key, value and context, each twice, two outputs,
    # two sums), 2 I around the activation, and 2 N S scores and probabilities; or only its input.
    compute_bytes = 4 if settings.mixed_precision == "float32" else 2
    full = 12 * h + 2 * wide + 2 * heads * length
    kept = layers * h + 2 * full if training.gradient_checkpointing else (layers + 1) * full
    logits = predictions * vocab_size * (compute_bytes + 3 * 4)
    activations = length * (kept * compute_bytes + (4 + compute_bytes) * h) + logits
    return {
        "parameters": parameters,
        "tokens": sequences * length,
        "flop_per_step": training.train_batch_size * flop,
        "flop": sequences * flop,
        "weights": parameters * (4 if compute_bytes == 4 else 6),  # and copies in 2 bytes
        "gradients": parameters * 4 * (1 if parts == 1 else 2),
        "optimizer": parameters * 2 * (4 if settings.optimizer_state_dtype == "float32" else 2),
        "activations": rows * activations,
    }


def _config_of(run: PhaseRun) -> BertConfig:
    if run.settings.bert_config:
        return BertConfig.from_json(run.settings.bert_config)
    if run.settings.init_checkpoint:
        return open_checkpoint(run.settings.init_checkpoint).config
    raise InputError("--bert_config is missing; expected a JSON file or a bundled config's name")
