"""Fine-tuning from start to end: a checkpoint and a task in; scores, predictions and model/ out.

model with the task's head, filled from the checkpoint -> the run's folder -> train, with an
evaluation after each epoch and the best weights kept in best/ -> the best weights -> scores,
TensorBoard, predictions -> model/ and results.json

The same command again goes on where a run was killed and ends at the same bits.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.model_directory import (
    check_place,
    open_model_directory,
    save_model_directory,
)
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_json
from keras_bert.optimization.loss_scale import LossScale
from keras_bert.tasks.fine_tuning.batches import steps_per_epoch, training_batches
from keras_bert.tasks.fine_tuning.model import make_model, make_optimizer
from keras_bert.tasks.fine_tuning.predict import Predict, make_predict_examples
from keras_bert.tasks.fine_tuning.pretrained import Pretrained
from keras_bert.tasks.fine_tuning.settings import FineTuningSettings
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.training.best import BestKept
from keras_bert.training.board import Board
from keras_bert.training.cluster import check_agreement, share_of
from keras_bert.training.loop import Evaluation, train
from keras_bert.training.objective import AfterBatch
from keras_bert.training.run import TrainingRun, TrainingSettings, check_batch_sizes
from keras_bert.training.run_directory import is_finished, running
from keras_bert.training.state import TrainState
from keras_bert.training.strategy import check_state_dtype
from keras_bert.training.summaries import read_evaluations


def fine_tune(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    record: Mapping[str, object],
    start: Pretrained,
    task: FineTuningTask,
) -> dict[str, float]:
    """Fine-tunes a model, or goes on with it, and saves what it became.

    Args:
        settings: what the run is made of.
        training: how it trains; `num_train_steps` 0 leaves its length to `num_train_epochs`.
        strategy: the devices.
        output_dir: the run's folder (README, "What a run leaves behind").
        record: what goes into run.json and must not change between a start and its continuation.
        start: the checkpoint, from `open_pretrained`.
        task: what is learnt.

    Returns:
        {"step": steps trained, "best_step": the step of the weights in model/} and the figures
        of `task.score`, as in results.json.

    Raises:
        InputError: anything about the task, the checkpoint or the folder that a user has to mend.
        EndedEarly: the run was told to stop, or a worker is gone.
    """
    check_run(settings, training, strategy, task)
    training = _with_length(settings, training, task)
    for name in ("model", "best"):
        check_place(output_dir / name)
    record = {**record, **start.record(), **task.record}
    check_agreement(strategy, {**record, **asdict(training)})
    if is_finished(output_dir, record, strategy):
        logging.info("%s is finished; nothing to do", output_dir)
        return read_json(output_dir / "results.json")
    if settings.do_eval and task.score is None:
        logging.info("there is no development set: nothing is scored")
    if settings.do_predict and task.write_predictions is None:
        logging.info("there is no test set: nothing is predicted")
    # Before the folder is touched: weights that do not fit leave nothing behind.
    model = make_model(settings, strategy, start, task)

    def save(name: str) -> None:
        save_model_directory(
            output_dir / name,
            model,
            start.config,
            start.vocab,
            start.do_lower_case,
            labels=task.labels,
            problem_type=task.problem_type,
        )

    with running(output_dir, record, strategy) as folder:
        predict = make_predict_examples(
            strategy,
            model,
            settings.eval_batch_size,
            start.pad_token_id,
            settings.max_seq_length,
            jit_compile=training.jit_compile,
        )
        results = {"step": 0, "best_step": 0}
        if settings.do_train:
            results = _train(
                settings, training, strategy, output_dir, start, task, model, predict, save
            )
        predict = functools.cache(predict)  # The weights stay as they are from here on.
        if settings.do_eval and task.score:
            results |= {name: float(value) for name, value in task.score(predict).items()}
            _show(task, predict, folder, results["best_step"])
        if settings.do_predict and task.write_predictions:
            task.write_predictions(predict, folder)
        if settings.do_train and folder == output_dir:
            save("model")
        write_json(folder / "results.json", results)
    return results


def check_run(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    task: FineTuningTask,
) -> None:
    """Checks that settings fit each other and what the task has data for.

    Args:
        settings: as for `fine_tune`.
        training: as for `fine_tune`.
        strategy: as for `fine_tune`.
        task: as for `fine_tune`.

    Raises:
        InputError: they do not, or there is nothing to train on.
    """
    if settings.do_train and not task.train:
        raise InputError("there are no training examples")
    if settings.early_stopping_patience and task.score is None:
        raise InputError(
            f"--early_stopping_patience={settings.early_stopping_patience} needs a development set"
        )
    check_batch_sizes(strategy, training, settings.eval_batch_size)
    check_state_dtype(strategy, settings.optimizer_state_dtype)


def _with_length(
    settings: FineTuningSettings, training: TrainingSettings, task: FineTuningTask
) -> TrainingSettings:
    """Completes how long a run trains by the number of its examples."""
    if not settings.do_train:
        return training
    epoch = steps_per_epoch(len(task.train), training.train_batch_size)
    steps = training.num_train_steps or max(1, round(epoch * settings.num_train_epochs))
    logging.info("%d examples, %d steps an epoch, %d steps", len(task.train), epoch, steps)
    return replace(training, num_train_steps=steps, evaluate_steps=epoch)


def _train(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    start: Pretrained,
    task: FineTuningTask,
    model: keras.Model,
    predict: Callable[..., dict[str, np.ndarray]],
    save: Callable[[str], None],
) -> dict[str, int]:
    """Trains, leaves the best weights in the model, and returns the steps in results.json."""
    steps = training.num_train_steps
    with strategy.scope():
        optimizer = make_optimizer(settings, steps, start.config)
        optimizer.build(model.trainable_variables)
        loss_scale = LossScale(optimizer) if settings.mixed_precision == "float16" else None

    def batches_from(step: int) -> tf.data.Dataset:
        return training_batches(
            task.train,
            training.train_batch_size,
            settings.random_seed,
            step,
            start.pad_token_id,
            settings.max_seq_length,
            settings.length_pool,
            share_of(strategy),
        )

    def evaluate(after_batch: AfterBatch) -> Mapping[str, float]:
        # A cache an evaluation, as the weights change in between.
        return task.score(functools.cache(functools.partial(predict, after_batch=after_batch)))

    evaluates = settings.do_eval and task.score is not None
    best = BestKept(
        task.best,
        lambda: save("best"),
        settings.early_stopping_patience,
    )
    train(
        TrainingRun(training, strategy, output_dir),
        TrainState(model, optimizer, task.sums, loss_scale),
        batches_from,
        Evaluation(evaluate, best) if evaluates else None,
    )
    if not evaluates:
        return {"step": steps, "best_step": steps}
    evaluations = read_evaluations(output_dir, steps)
    evaluated = [int(evaluation["step"]) for evaluation in evaluations]
    last = evaluated[-1] if evaluated else 0
    if not last or {*range(training.evaluate_steps, last, training.evaluate_steps)} - {*evaluated}:
        raise InputError(
            f"{output_dir / 'metrics.jsonl'} has lost the run's evaluations; expected one an epoch"
        )
    best_step = best.step_of_best(evaluations)
    with strategy.scope():
        open_model_directory(output_dir / "best").load_into(model)
    return {"step": last, "best_step": best_step}


def _show(task: FineTuningTask, predict: Predict, folder: Path, step: int) -> None:
    if task.show:
        board = Board(folder, step)
        try:
            task.show(predict, board)
        finally:
            board.close()
