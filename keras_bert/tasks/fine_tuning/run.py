"""Fine-tunes a task object from a checkpoint and saves metrics, predictions and model/.

1. Create the task object with its head and load the checkpoint.
2. Create the run's folder.
3. Train, evaluate after each epoch and keep the best weights in best/.
4. Load the best weights; write metrics, TensorBoard summaries and predictions.
5. Write model/ and results.json.

The same command resumes an interrupted run, with bit-identical results.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.earlier_run import SETTINGS_KEY
from keras_bert.checkpoints.hugging_face import (
    CONFIG,
    check_replaceable,
    open_model_directory,
    save_model_directory,
)
from keras_bert.errors import InputError
from keras_bert.export.model_card import run_card
from keras_bert.files import read_json, value_of, write_json
from keras_bert.tasks.examples import (
    Examples,
    Predict,
    make_predict_examples,
    steps_per_epoch,
    training_batches,
)
from keras_bert.tasks.fine_tuning.distillation import (
    add_teacher_outputs,
    check_same_tokenizer,
    check_sizes,
)
from keras_bert.tasks.fine_tuning.model import batch_settings, make_optimizer, make_task_object
from keras_bert.tasks.fine_tuning.pretrained import open_pretrained
from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.tasks.task import Task
from keras_bert.training.cluster import check_agreement, convert_lost_worker_errors
from keras_bert.training.log import Board, read_evaluations
from keras_bert.training.loop import BestWeights, train
from keras_bert.training.objective import (
    AfterBatch,
    TrainState,
    check_batch_sizes,
    limited_memory,
)
from keras_bert.training.optimizers import LossScale
from keras_bert.training.run_folder import is_finished, log_finished, running
from keras_bert.training.strategy import check_state_dtype

# A cache of the model's outputs for examples, {examples: {output: array}}. It must be cleared when
# the weights change.
OutputCache = dict[Examples, dict[str, np.ndarray]]


def fine_tune(run: FineTuningRun, start: Checkpoint, task: FineTuningTask) -> dict[str, float]:
    """Fine-tunes a model, or resumes a run, and saves its files (docs/reference/outputs.md).

    Returns:
        {name: value} as in results.json: the metrics of `task.score`, "step" (the number of steps
        trained), "best_step" (the step of the weights in model/), and "SPLIT_truncated" (the number
        of truncated examples) for the splits in `task.truncated`; and `task.counts`.

    Raises:
        InputError: the task, the checkpoint or the folder is not usable.
        EndedEarly: the run received SIGTERM, or a worker was lost.
    """
    teacher = open_teacher(run, start) if run.distillation else None
    _check_run(run, task)
    run = _with_length(run, task)
    settings, strategy, output_dir = run.settings, run.strategy, run.output_dir
    for name in ("model", "best"):
        check_replaceable(output_dir / name)
    record = {**run.record, **start.record(), **task.record}
    if teacher:
        record["teacher_weights_sha256"] = teacher.weights_sha256
    check_agreement(strategy, {**record, **asdict(run.training)})
    if is_finished(output_dir, record, strategy):
        log_finished(output_dir)
        return read_json(output_dir / "results.json")
    if settings.do_eval and not task.has_dev:
        logging.info("No development set: evaluation is skipped")
    if settings.do_predict and not task.has_test:
        logging.info("No test set: prediction is skipped")
    if teacher and run.distillation.is_used:
        task.train = label(run, teacher, task)
    # Load the weights first, so that no folder is created if they do not match the model.
    task_object = make_task_object(run, start, task)
    with running(output_dir, record, strategy) as folder:
        predict = make_predict_examples(
            strategy,
            task_object.prediction_model,
            batch_settings(run, task_object.tokenizer.pad_token_id, settings.eval_batch_size),
            jit_compile=run.training.jit_compile,
        )
        results, outputs = {}, {}
        if settings.do_train:
            results, outputs = _train(run, task, task_object, predict)
        predict = _cached(predict, outputs)  # From here on, the weights do not change.
        if settings.do_eval and task.has_dev:
            results |= {name: float(value) for name, value in task.score(predict).items()}
            _show(task, predict, folder, results.get("best_step", 0))
        if settings.do_predict and task.has_test:
            task.write_predictions(predict, folder)
        if settings.do_train and folder == output_dir:
            card = run_card(task_object.task, task_object.describe(), record, results)
            task_object.save_pretrained(output_dir / "model", card)
        results |= task.counts
        results |= {f"{split}_truncated": count for split, count in task.truncated.items()}
        write_json(folder / "results.json", results)
    return results


def _check_run(run: FineTuningRun, task: FineTuningTask) -> None:
    """Raises InputError if the settings conflict with each other or with the task's data."""
    settings = run.settings
    if settings.do_train and not task.train:
        raise InputError("there are no training examples; expected at least one")
    if settings.early_stopping_patience and not task.has_dev:
        raise InputError(
            f"--early_stopping_patience={settings.early_stopping_patience} needs a development set"
        )
    check_batch_sizes(run.strategy, run.training, settings.eval_batch_size)
    check_state_dtype(run.strategy, settings.optimizer_state_dtype)


def _with_length(run: FineTuningRun, task: FineTuningTask) -> FineTuningRun:
    """Returns the run with its number of steps, in total and between evaluations (an epoch)."""
    if not run.settings.do_train:
        return run
    training = run.training
    count = task.train.num_groups
    epoch = steps_per_epoch(count, training.train_batch_size)
    steps = training.num_train_steps or max(1, round(epoch * run.settings.num_train_epochs))
    logging.info("%d training examples, %d steps per epoch, %d steps in total", count, epoch, steps)
    return replace(run, training=replace(training, num_train_steps=steps, evaluate_steps=epoch))


def _train(
    run: FineTuningRun, task: FineTuningTask, task_object: Task, predict: Callable[..., Any]
) -> tuple[dict[str, float], OutputCache]:
    """Trains, and loads the best weights into the model.

    Returns "step", "best_step" and the performance for results.json, and the outputs of the best
    weights that the last evaluation computed, if it evaluated these weights.
    """
    settings, training, strategy = run.settings, run.training, run.strategy
    best_dir, model, steps = run.output_dir / "best", task_object.model, training.num_train_steps
    with strategy.scope():
        optimizer = make_optimizer(settings, steps, model.config)
        optimizer.build(model.trainable_variables)
        loss_scale = LossScale(optimizer) if settings.mixed_precision == "float16" else None
    rows = training.train_batch_size * task.train.group_size
    batches = batch_settings(run, task_object.tokenizer.pad_token_id, rows)
    _, workers = batches.share
    longest = int(task.train.lengths.max())
    sizes = (training, workers, model.config, longest, task.train.group_size)
    outputs: OutputCache = {}  # of the last evaluation

    def evaluate(after_batch: AfterBatch) -> Mapping[str, float]:
        outputs.clear()  # The weights have changed since the last evaluation.
        return task.score(_cached(functools.partial(predict, after_batch=after_batch), outputs))

    evaluates = settings.do_eval and task.has_dev
    best = BestWeights(
        task.best,
        lambda step: save_best(best_dir, task_object, step),
        lambda: read_best_step(best_dir),
        settings.early_stopping_patience,
    )
    with limited_memory(*sizes):
        _, performance = train(
            run,
            TrainState(model, optimizer, task.objective, loss_scale),
            lambda step: training_batches(task.train, batches, step),
            evaluate if evaluates else None,
            best if evaluates else None,
        )
    if not evaluates:
        return {"step": steps, "best_step": steps, **performance}, {}
    last, best_step = _last_and_best_step(run, best)
    with strategy.scope():
        open_model_directory(best_dir).load_into(model)
    results = {"step": last, "best_step": best_step, **performance}
    return results, outputs if best_step == last else {}


def _last_and_best_step(run: FineTuningRun, best: BestWeights) -> tuple[int, int]:
    """Returns the steps of the last evaluation and of the weights in best/."""
    training, output_dir = run.training, run.output_dir
    evaluations = read_evaluations(output_dir, training.num_train_steps)
    evaluated = [int(evaluation["step"]) for evaluation in evaluations]
    last = evaluated[-1] if evaluated else 0
    if not last or {*range(training.evaluate_steps, last, training.evaluate_steps)} - {*evaluated}:
        raise InputError(
            f"{output_dir / 'metrics.jsonl'}: evaluations are missing; expected one per epoch"
        )
    saved, highest = best.step_of_saved(evaluations), best.step_of_best(evaluations)
    if saved != highest:
        logging.warning(
            "%s: has the weights of step %d; the better weights of step %d were lost when the run "
            "was killed",
            output_dir / "best",
            saved,
            highest,
        )
    return last, saved


def _cached(predict: Predict, outputs: OutputCache) -> Predict:
    """Returns `predict` with the cache `outputs`, in which it looks up and stores its results."""

    def cached(examples: Examples) -> dict[str, np.ndarray]:
        if examples not in outputs:
            outputs[examples] = predict(examples)
        return outputs[examples]

    return cached


def _show(task: FineTuningTask, predict: Predict, folder: Path, step: int) -> None:
    board = Board(folder, step)
    try:
        task.show(predict, board)
    finally:
        board.close()


# --- best weights ---
# best/ is the model directory with the best weights of a run. Its config.json also has their step,
# so weights and step are always replaced together.

_STEP = "best_step"  # the key of the step among the task's settings in config.json


def save_best(folder: Path, task_object: Task, step: int) -> None:
    """Saves a task object and the step of its weights in `folder`; replaces an earlier model."""
    description = task_object.describe()
    settings = {**description.extra.get(SETTINGS_KEY, {}), _STEP: step}
    extra = {**description.extra, SETTINGS_KEY: settings}
    save_model_directory(folder, task_object.model, replace(description, extra=extra))


def read_best_step(folder: Path) -> int | None:
    """Returns the step of the weights in `folder`.

    The result is None if the folder does not exist, or was saved by a version of this library that
    did not save the step.

    Raises:
        InputError: config.json cannot be read.
    """
    path = folder / CONFIG
    settings = read_json(path).get(SETTINGS_KEY) if path.is_file() else None
    return value_of(path, settings, _STEP, int, None) if isinstance(settings, dict) else None


# --- teacher ---


def open_teacher(run: FineTuningRun, student: Checkpoint) -> Checkpoint:
    """Opens the fine-tuned model from which the model of a run learns.

    Raises:
        InputError: the teacher cannot be opened, its vocabulary or tokenizer differs, or it is
            narrower than the student, the initial checkpoint of the run.
    """
    teacher, where = open_pretrained(_teacher_settings(run)), f"--teacher={run.teacher}"
    check_same_tokenizer(
        (student.vocab, student.tokenizer_settings, str(student.path)),
        (teacher.vocab, teacher.tokenizer_settings, where),
    )
    check_sizes(student.config, teacher.config, where)
    return teacher


def label(run: FineTuningRun, teacher: Checkpoint, task: FineTuningTask) -> Examples:
    """Returns the training examples with the outputs of the teacher.

    Raises:
        InputError: the teacher has no head for the task, or other labels.
    """
    logging.info("The teacher labels %d training examples", len(task.train))
    run = replace(run, settings=_teacher_settings(run))
    with convert_lost_worker_errors(run.strategy):
        task_object = make_task_object(run, teacher, task, is_teacher=True)
        network, pad_token_id = task_object.prediction_model, task_object.tokenizer.pad_token_id
        predict = make_predict_examples(
            run.strategy,
            network,
            batch_settings(run, pad_token_id, run.settings.eval_batch_size),
            jit_compile=run.training.jit_compile,
        )
        return add_teacher_outputs(task.train, predict(task.train), network.per_token)


def _teacher_settings(run: FineTuningRun) -> FineTuningSettings:
    return replace(
        run.settings,
        init_checkpoint=run.teacher,
        vocab_file="",
        do_lower_case=None,
        label_names=None,
        do_train=False,
        do_predict=True,
    )
