"""Pre-trains a model and saves checkpoints, metrics and a model directory.

1. Find and check the inputs.
2. Create the model, newly initialized or from a checkpoint, and the run's folder.
3. Train and evaluate.
4. Write model/ and results.json.
"""

from dataclasses import asdict, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, ModelDescription
from keras_bert.checkpoints.model_directory import check_replaceable, save_model_directory
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_json
from keras_bert.config import BertConfig
from keras_bert.data.records import explain_record_errors
from keras_bert.models import BertPretrainer
from keras_bert.models.memory import check_batch_fits
from keras_bert.optimization.optimizers import AdamWeightDecay, Lamb, LossScale
from keras_bert.optimization.schedules import LinearWarmupDecay
from keras_bert.tasks.pretraining.baseline import unigram_baseline
from keras_bert.tasks.pretraining.batches import (
    BatchRamp,
    RecordSource,
    evaluation_batches,
    training_batches,
)
from keras_bert.tasks.pretraining.inputs import PretrainingInputs, find_inputs
from keras_bert.tasks.pretraining.objective import pretraining_objective
from keras_bert.tasks.pretraining.settings import SAMPLE_SIZE, PretrainingSettings
from keras_bert.tasks.run_card import run_card
from keras_bert.training.backend import free, make_evaluate
from keras_bert.training.checkpoint import restore_latest
from keras_bert.training.cluster import (
    check_agreement,
    convert_lost_worker_errors,
    num_workers,
    share_of,
)
from keras_bert.training.log import progress
from keras_bert.training.loop import Evaluation, train
from keras_bert.training.objective import AfterBatch, TrainState
from keras_bert.training.run import (
    TrainingRun,
    TrainingSettings,
    check_batch_sizes,
    check_train_batch_fits,
)
from keras_bert.training.run_folder import flat, is_finished, log_finished, running
from keras_bert.training.strategy import check_state_dtype, dtype_policy


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
