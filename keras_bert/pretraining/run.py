"""Pre-trains a model in phases, each of which starts from the model of the previous one.

    phase-1/ -> weights (with continue_optimizer, also optimizer state) -> phase-2/ -> ... -> model/

1. Find and check the inputs of all phases.
2. Create the model, newly initialized or from a checkpoint, and the folder of the phase.
3. Train and evaluate; compare with the unigram baseline.
4. Write model/ and results.json.

A single phase runs in the output folder itself. Several phases have a folder each, in which they
are ordinary runs, so the same command resumes an interrupted phase; the output folder contains
run.json, results.json and model/ for all phases together. If there are several workers, worker 0
writes these files. The estimate of --dry_run is at the end of this file.
"""

import gc
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.hugging_face import check_replaceable, save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.model_card import run_card
from keras_bert.files import atomic_path, read_json, write_json
from keras_bert.models import BertPretrainer
from keras_bert.models.memory import check_batch_fits
from keras_bert.pretraining.inputs import PretrainingInputs, find_inputs
from keras_bert.pretraining.objective import (
    OBJECTIVES,
    PREDICTIONS,
    PretrainingObjective,
    label_weights,
)
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.records import (
    PretrainingData,
    evaluation_batches,
    explain_record_errors,
    training_batches,
)
from keras_bert.pretraining.settings import SAMPLE_SIZE, PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.training.backend import free
from keras_bert.training.checkpoint import list_checkpoints, restore_latest
from keras_bert.training.cluster import (
    check_agreement,
    convert_lost_worker_errors,
    gather,
    num_workers,
    share_of,
)
from keras_bert.training.evaluate import make_evaluate
from keras_bert.training.log import progress
from keras_bert.training.loop import train
from keras_bert.training.objective import (
    AfterBatch,
    TrainingRun,
    TrainState,
    check_batch_sizes,
    checked_memory,
)
from keras_bert.training.optimizers import OPTIMIZERS, create_optimizer
from keras_bert.training.run_folder import flat, is_finished, log_finished, running
from keras_bert.training.strategy import check_state_dtype, dtype_policy, without_autotuning

# Records for evaluation may have stored masks and another number of passes.
_MAY_DIFFER_IN_EVALUATION = ("dynamic", "dupe_factor")


# --- phases ---


def pretrain(
    phases: Sequence[Phase],
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    is_part: bool = False,
) -> dict[str, float]:
    """Pre-trains phase by phase, or resumes the interrupted phase, and saves the model.

    `output_dir` gets the files of a run. With several phases, it gets a folder `phase-N` for each,
    model/ and results.json of the last one, and a run.json with the settings of the last phase and
    those that differ in the others. `is_part` is whether this is a part of a larger run.

    Returns:
        {metric: value} as in results.json: the final metrics of the last phase and, after training,
        "step", the number of steps.

    Raises:
        InputError: before anything is written, the records, config, vocabulary, checkpoint or
            folder are unusable, or do not match each other or the recipe.
        EndedEarly: the run received SIGTERM, or a worker was lost.
    """
    inputs = check_phases(phases, strategy)
    check_replaceable(output_dir / "model")
    records = [
        {**phase.record, **phase_inputs.record(), **workers_of(strategy)}
        for phase, phase_inputs in zip(phases, inputs, strict=True)
    ]
    settings = [
        {**asdict(phase.training), **record} for phase, record in zip(phases, records, strict=True)
    ]
    check_agreement(strategy, flat(_by_phase(settings)))
    runs = [*zip(phases, inputs, records, strict=True)]
    if len(runs) == 1:
        with phases[0].named():
            return _run_phase(*runs[0], strategy, output_dir, is_part)

    with_data = [{**record, "data": dict(phase.data)} for phase, _, record in runs]
    all_phases = {**_by_phase(with_data), "phases": len(phases)}
    if is_finished(output_dir, all_phases, strategy):
        log_finished(output_dir, is_part)
        return read_json(output_dir / "results.json")
    with running(output_dir, all_phases, strategy) as folder_of_worker:
        for number, (phase, phase_inputs, record) in enumerate(runs, 1):
            gc.collect()  # The programs of two phases may not fit in memory together.
            steps = phase.training.num_train_steps
            logging.info("Starting phase %d of %d: %d steps", number, len(phases), steps)
            folder = output_dir / f"phase-{number}"
            if number > 1:
                previous = output_dir / f"phase-{number - 1}"
                # A phase resumes from its own checkpoints only if all workers have some.
                has_started = all(gather(strategy, bool(list_checkpoints(folder / "checkpoints"))))
                init_run = str(previous) if phase.continue_optimizer and not has_started else ""
                settings = replace(phase.settings, init_checkpoint=str(previous), init_run=init_run)
                phase = replace(phase, settings=settings)
                phase_inputs = phase_inputs._replace(checkpoint=open_checkpoint(previous))
                record = {**record, "init_checkpoint": previous.name}
            with phase.named():
                results = _run_phase(phase, phase_inputs, record, strategy, folder, is_part=True)
        if folder_of_worker == output_dir:
            with atomic_path(output_dir / "model") as partial:
                shutil.copytree(folder / "model", partial)
        write_json(folder_of_worker / "results.json", results)
    return results


def check_phases(
    phases: Sequence[Phase], strategy: tf.distribute.Strategy
) -> list[PretrainingInputs]:
    """Finds the inputs of each phase, and checks that they match the recipe and each other.

    The inputs of each phase are found as if it had no previous phase.
    """
    inputs: list[PretrainingInputs] = []
    for phase in phases:
        settings, training = phase.settings, phase.training
        with phase.named():
            inputs.append(find_inputs(settings))
            first, last = inputs[0], inputs[-1]
            last.data.share(*share_of(strategy))  # Raises if there are too few files.
            check_batch_sizes(strategy, training, settings.eval_batch_size)
            check_state_dtype(strategy, settings.optimizer_state_dtype)
            _check_records(phase, last)
            objectives = first.objective, last.objective
            if first.objective != last.objective and (
                phase.continue_optimizer or "ltr" in objectives
            ):
                expected = "ltr in all phases or in none"
                if phase.continue_optimizer:
                    expected = "the same objective with continue_optimizer"
                raise InputError(
                    f"objective {last.objective} cannot follow {first.objective}; expected "
                    f"{expected}"
                )
            for name in ("vocab", "tokenizer_settings", "config"):
                if getattr(first, name) != getattr(last, name):
                    raise InputError(
                        f"{settings.input_file}: {name} differs from that of the records of "
                        f"phase 1, {phases[0].settings.input_file}; expected the same"
                    )
            warmup = settings.num_warmup_steps
            total = settings.schedule_steps or training.num_train_steps
            if settings.do_train and warmup is not None and warmup >= total:
                logging.warning(
                    "--num_warmup_steps=%d: the learning rate never reaches its peak in %d steps",
                    warmup,
                    total,
                )
    return inputs


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


def _by_phase(settings: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Returns the settings of the last phase and, as "phase-N", those that differ in the others."""
    last = settings[-1]
    return {**last} | {
        f"phase-{number}": {name: v for name, v in earlier.items() if v != last.get(name)}
        for number, earlier in enumerate(settings[:-1], 1)
    }


# --- a run ---


def _run_phase(
    phase: Phase,
    inputs: PretrainingInputs,
    record: Mapping[str, object],
    strategy: tf.distribute.Strategy,
    folder: Path,
    is_part: bool,
) -> dict[str, float]:
    """Runs or resumes one phase in its folder; returns its results."""
    settings, training = phase.settings, phase.training
    if is_finished(folder, record, strategy):
        log_finished(folder, is_part)
        return read_json(folder / "results.json")
    # Load the weights first, so that no folder is created if they do not match the model.
    state = make_state(phase, inputs, strategy)
    workers, length = num_workers(strategy), inputs.data.max_seq_length
    if settings.do_eval:
        rows = settings.eval_batch_size
        check_batch_fits(inputs.config, rows // workers, length, f"--eval_batch_size={rows}")
    run = TrainingRun(training, strategy, folder, record, is_part)
    with running(folder, record, strategy) as folder_of_worker:
        results = _train_and_evaluate(settings, run, inputs, state)
        if settings.do_train and folder_of_worker == folder:
            tokenizer = inputs.tokenizer_settings
            card = run_card(None, inputs.config, tokenizer, flat(record), results)
            config = inputs.config.to_dict()  # Without the dropout rates of the flags.
            save_model_directory(
                folder / "model", state.model, inputs.vocab, tokenizer, extra=config, card=card
            )
        write_json(folder_of_worker / "results.json", results)
    # The model of the next phase may not fit in memory together with this one.
    free([*state.model.variables, *state.optimizer.variables])
    return results


def workers_of(strategy: tf.distribute.Strategy) -> dict[str, int]:
    """Returns {"num_workers": ...} for run.json, since batches depend on it; {} for one worker."""
    workers = num_workers(strategy)
    return {"num_workers": workers} if workers > 1 else {}


def make_state(
    phase: Phase, inputs: PretrainingInputs, strategy: tf.distribute.Strategy
) -> TrainState:
    """Creates the model, optimizer and loss scale as they are before the first step of a run.

    Without a checkpoint, the weights are newly initialized. There is a loss scale only for float16.
    """
    settings, training = phase.settings, phase.training
    keras.utils.set_random_seed(settings.random_seed)
    rate, attention_rate = settings.dropout_prob, settings.attention_dropout_prob
    rates = {
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate if attention_rate is None else attention_rate,
    }
    config = replace(inputs.config, **{name: p for name, p in rates.items() if p is not None})
    with convert_lost_worker_errors(strategy), strategy.scope():
        model = BertPretrainer(config, dtype=dtype_policy(settings.mixed_precision))
        if inputs.checkpoint:
            logging.info("%s", inputs.checkpoint.load_into(model))
        if inputs.objective != "mlm_nsp":
            # No loss depends on these two layers; weight decay alone would shrink them.
            model.encoder.pooler.trainable = model.next_sentence.trainable = False
        # LAMB has no such option.
        is_adamw = settings.optimizer == "adamw"
        optimizer, loss_scale = create_optimizer(
            model,
            settings.learning_rate,
            settings.schedule_steps or training.num_train_steps,
            settings.warmup_steps(training.num_train_steps),
            settings.optimizer,
            state_dtype=settings.optimizer_state_dtype,
            **({"bias_correction": settings.bias_correction} if is_adamw else {}),
        )
        if settings.init_run:
            _restore_last(Path(settings.init_run), model, optimizer)
    return TrainState(model, optimizer, PretrainingObjective(inputs.objective), loss_scale)


def _restore_last(run: Path, model: BertPretrainer, optimizer: keras.optimizers.Optimizer) -> None:
    checkpoints, last = run / "checkpoints", read_json(run / "results.json")["step"]
    if restore_latest(checkpoints, model, optimizer) != last:
        raise InputError(f"{checkpoints}: has no complete checkpoint of step {last}; expected one")


def _train_and_evaluate(
    settings: PretrainingSettings, run: TrainingRun, inputs: PretrainingInputs, state: TrainState
) -> dict[str, float]:
    training, strategy = run.training, run.strategy
    vocab_size, share = inputs.config.vocab_size, share_of(strategy)
    of_batches = {"left_to_right": inputs.objective == "ltr", "share": share}
    score = make_evaluate(strategy, state.model, state.objective, jit_compile=training.jit_compile)
    batch_size = settings.eval_batch_size
    trained = training.num_train_steps * training.train_batch_size
    evaluated = settings.eval_examples(inputs.held_out.num_examples, trained)

    def evaluate(after_batch: AfterBatch | None = None) -> dict[str, float]:
        max_batches = -(-evaluated // batch_size)
        batches = evaluation_batches(
            inputs.held_out, vocab_size, batch_size, max_batches, **of_batches
        )
        with (
            explain_record_errors(inputs.held_out, vocab_size),
            progress("evaluating", evaluated, "examples", silent=share[0] > 0) as advance,
        ):

            def after_each() -> None:
                advance(batch_size)
                if after_batch:
                    after_batch()

            return score(batches, after_each)

    def batches_from(step: int) -> tf.data.Dataset:
        size, seed = training.train_batch_size, settings.random_seed
        return training_batches(inputs.data, vocab_size, size, seed, step, **of_batches)

    metrics, performance = None, {}
    if settings.do_train:
        workers, length = num_workers(strategy), inputs.data.max_seq_length
        with (
            explain_record_errors(inputs.data, vocab_size),
            checked_memory(training, workers, inputs.config, length),
        ):
            evaluates = settings.do_eval and settings.eval_file
            metrics, performance = train(
                run,
                state,
                batches_from,
                evaluate if evaluates else None,
                num_examples=inputs.data.num_examples,
            )
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
    return results | performance


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
    batches = evaluation_batches(
        data, vocab_size, batch_size, max_batches, left_to_right=objective == "ltr"
    )
    for batch in without_autotuning(batches).as_numpy_iterator():
        for name, count in counts.items():
            labels = batch[PREDICTIONS[name].labels].ravel()
            count += np.bincount(labels, label_weights(batch, name).ravel(), len(count))
    return counts


# --- dry run ---


_MEMORY = ("weights", "gradients", "optimizer", "activations")


def dry_run(phases: Sequence[Phase], strategy: tf.distribute.Strategy) -> list[str]:
    """Estimates the cost of pre-training without running a step.

    Returns the lines to print. Without `input_file`, the records need not exist yet.
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
