"""Fine-tuning from start to end: a checkpoint and a task in; scores, predictions and model/ out.

model with the task's head, filled from the checkpoint -> the run's folder -> train, with an
evaluation after each epoch and the best weights kept in best/ -> the best weights -> scores,
TensorBoard, predictions -> model/ and results.json

The same command again goes on where a run was killed and ends at the same bits.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.layer_decay import layer_decay_multipliers
from keras_bert.optimization.schedules import LinearWarmupDecay
from keras_bert.tasks.fine_tuning.batches import steps_per_epoch, training_batches
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict, make_predict_examples
from keras_bert.tasks.fine_tuning.start import FineTuningSettings, Start
from keras_bert.training.best import BestKept
from keras_bert.training.board import Board
from keras_bert.training.loop import TrainingSettings, check_batch_sizes, train
from keras_bert.training.run_directory import is_finished, running
from keras_bert.training.summaries import read_evaluations
from keras_bert.training.task import Task


@dataclass(frozen=True)
class FineTuningTask:
    """What a task brings to its run.

    `predict` in what follows runs the model over Examples: for a model of examples (`per_piece`
    false) it gives {output: [n, ...]}, for one of pieces {output: [T, ...]}, aligned with
    `input_ids`. The same Examples with the same weights are computed once.

    Attributes:
        make_model: (config, dtype policy) -> the model, one of keras_bert.models.
        sums: the losses to descend and the figures to report while training.
        train: the training examples, with the labels that `sums` takes; None without training.
        score: predict -> figures of the development set under their official names; called after
            each epoch and for the result. None where there is no such set.
        best: the figure of `score` that decides which weights are kept.
        higher_is_better: whether more of it is better.
        show: (predict, board): puts tables and curves on TensorBoard; called with the best
            weights where `score` was.
        write_predictions: (predict, folder): writes the task's prediction files.
        labels: names of the model's labels in the order of its logits.
        problem_type: transformers' word for the loss.
        extra: further keys of the model's config.json.
    """

    make_model: Callable[[BertConfig, str], keras.Model]
    sums: Task
    train: Examples | None = None
    score: Callable[[Predict], Mapping[str, float]] | None = None
    best: str = "accuracy"
    higher_is_better: bool = True
    show: Callable[[Predict, Board], None] | None = None
    write_predictions: Callable[[Predict, Path], None] | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


def fine_tune(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    record: Mapping[str, object],
    start: Start,
    task: FineTuningTask,
) -> dict[str, float]:
    """Fine-tunes a model, or goes on with it, and saves what it became.

    Args:
        settings: what the run is made of.
        training: how it trains; `num_train_steps` 0 leaves its length to `num_train_epochs`.
        strategy: the devices.
        output_dir: the run's folder (README, "What a run leaves behind").
        record: what goes into run.json and must not change between a start and its continuation.
        start: the checkpoint, from `find_start`.
        task: what is learnt.

    Returns:
        {"step": steps trained, "best_step": the step of the weights in model/} and the figures
        of `task.score`, as in results.json.

    Raises:
        InputError: anything about the task, the checkpoint or the folder that a user has to mend.
    """
    training = _with_length(settings, training, task)
    check_batch_sizes(strategy, training, settings.eval_batch_size)
    for name in ("model", "best"):
        check_place(output_dir / name)
    record = complete_record(settings, record, start, task)
    if is_finished(output_dir, record):
        logging.info("%s is finished; nothing to do", output_dir)
        return read_json(output_dir / "results.json")
    # Before the folder is touched: weights that do not fit leave nothing behind.
    model = _make_model(settings, strategy, start, task)

    def save(name: str) -> None:
        save_model_directory(
            output_dir / name,
            model,
            start.config,
            start.vocab,
            start.do_lower_case,
            labels=task.labels,
            problem_type=task.problem_type,
            extra=task.extra,
        )

    with running(output_dir, record):
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
            _check_finite(results)
            _show(task, predict, output_dir, results["best_step"])
        if settings.do_predict and task.write_predictions:
            task.write_predictions(predict, output_dir)
        if settings.do_train:
            save("model")
        write_json(output_dir / "results.json", results)
    return results


def complete_record(
    settings: FineTuningSettings, record: Mapping[str, object], start: Start, task: FineTuningTask
) -> dict[str, object]:
    """Adds to what goes into run.json what a run starts from and learns.

    Args:
        settings: what the run is made of.
        record: what the program and the task say.
        start: the checkpoint.
        task: what is learnt.

    Returns:
        All that must not change between a start and its continuation.
    """
    record = {**record, **start.record()}
    if settings.do_train and task.train is not None:
        record["train_sha256"] = _digest(task.train)
    return record


def _with_length(
    settings: FineTuningSettings, training: TrainingSettings, task: FineTuningTask
) -> TrainingSettings:
    """Completes how long a run trains by the number of its examples."""
    if not settings.do_train:
        return training
    if task.train is None or not len(task.train):
        raise InputError("there are no training examples")
    epoch = steps_per_epoch(len(task.train), training.train_batch_size)
    steps = training.num_train_steps or max(1, round(epoch * settings.num_train_epochs))
    logging.info("%d examples, %d steps an epoch, %d steps", len(task.train), epoch, steps)
    return replace(training, num_train_steps=steps, evaluate_steps=epoch)


def _make_model(
    settings: FineTuningSettings,
    strategy: tf.distribute.Strategy,
    start: Start,
    task: FineTuningTask,
) -> keras.Model:
    keras.utils.set_random_seed(settings.random_seed)
    policy = "mixed_bfloat16" if settings.mixed_precision == "bfloat16" else "float32"
    checkpoint = start.checkpoint
    _check_head(settings, start, task)
    with strategy.scope():
        model = task.make_model(start.config, policy)
        report = checkpoint.load_into(model)
    logging.info("%s", report)
    if report.new and not settings.do_train:
        raise InputError(
            f"{checkpoint.path} lacks {', '.join(report.new)}; expected a model fine-tuned on this "
            "task, or --do_train"
        )
    encoder = model.encoder
    if model.per_piece:
        # No loss reaches it; weight decay alone would wear it down.
        encoder.pooler.trainable = False
    for layer in [encoder.embeddings, *encoder.blocks][: settings.num_frozen_layers]:
        layer.trainable = False
    return model


def _check_head(settings: FineTuningSettings, start: Start, task: FineTuningTask) -> None:
    """Checks that a head that the checkpoint has tells what the task asks."""
    checkpoint = start.checkpoint
    if task.labels and start.labels not in (None, [*task.labels]):
        with checkpoint.open_weights() as stored:
            has_head = stored.layout.name("classifier/kernel") in stored.shapes
        if has_head:
            # Its rows would be taken for other labels than they were learnt for.
            way = "; python -m keras_bert.checkpoints.convert SRC DST --noheads gives a fresh start"
            raise InputError(
                f"{checkpoint.path} has the labels {', '.join(start.labels)[:200]}; "
                f"expected {', '.join(task.labels)[:200]}{way * settings.do_train}"
            )
    known = checkpoint.problem_type
    if not settings.do_train and known and task.problem_type and known != task.problem_type:
        raise InputError(
            f"{checkpoint.path} is of the problem type {known}; expected {task.problem_type}"
        )


def _make_optimizer(
    settings: FineTuningSettings, num_train_steps: int, config: BertConfig
) -> keras.optimizers.Optimizer:
    warmup = int(num_train_steps * settings.warmup_proportion)
    return AdamWeightDecay(
        LinearWarmupDecay(settings.learning_rate, num_train_steps, warmup),
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
        learning_rate_multipliers=layer_decay_multipliers(
            settings.layer_decay, config.num_hidden_layers
        ),
    )


def _train(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    start: Start,
    task: FineTuningTask,
    model: keras.Model,
    predict: Predict,
    save: Callable[[str], None],
) -> dict[str, int]:
    """Trains, leaves the best weights in the model, and returns the steps in results.json."""
    steps = training.num_train_steps
    with strategy.scope():
        optimizer = _make_optimizer(settings, steps, start.config)
        optimizer.build(model.trainable_variables)

    def batches_from(step: int) -> tf.data.Dataset:
        return training_batches(
            task.train,
            training.train_batch_size,
            settings.random_seed,
            step,
            start.pad_token_id,
            settings.max_seq_length,
        )

    evaluates = settings.do_eval and task.score is not None
    best = BestKept(
        task.best,
        lambda: save("best"),
        task.higher_is_better,
        settings.early_stopping_patience,
    )
    train(
        strategy,
        model,
        optimizer,
        task.sums,
        batches_from,
        training,
        output_dir,
        # A cache an evaluation, as the weights change in between.
        (lambda: task.score(functools.cache(predict))) if evaluates else None,
        best if evaluates else None,
    )
    if not evaluates:
        return {"step": steps, "best_step": steps}
    evaluations = read_evaluations(output_dir, steps)
    best_step = best.step_of_best(evaluations)
    if best_step is None:
        raise InputError(
            f"{output_dir / 'metrics.jsonl'} has lost the run's evaluations; expected one an epoch"
        )
    with strategy.scope():
        open_model_directory(output_dir / "best").load_into(model)
    return {"step": int(evaluations[-1]["step"]), "best_step": best_step}


def _show(task: FineTuningTask, predict: Predict, output_dir: Path, step: int) -> None:
    if task.show:
        board = Board(output_dir, step)
        try:
            task.show(predict, board)
        finally:
            board.close()


def _check_finite(results: Mapping[str, float]) -> None:
    broken = [name for name, value in results.items() if not np.isfinite(value)]
    if broken:
        raise InputError(f"{', '.join(broken)} of the evaluation is not finite; nothing is saved")


def _digest(examples: Examples) -> str:
    """Returns a checksum of everything in the examples."""
    digest = hashlib.sha256()
    for values in (
        examples.input_ids,
        examples.segment_ids,
        examples.starts,
        *(examples.labels[name] for name in sorted(examples.labels)),
        *(examples.piece_labels[name] for name in sorted(examples.piece_labels)),
    ):
        digest.update(np.ascontiguousarray(values))
    return digest.hexdigest()
