"""Fine-tunes a task object on files and saves metrics, predictions and model/.

1. Read the data of the run, and create the task object without a model (TASK/task.py).
2. Create its model with its head, and load the checkpoint.
3. Create the run's folder.
4. Train, evaluate after each epoch and keep the best weights in best/.
5. Load the best weights; write metrics and predictions.
6. Write model/ and results.json.

The same command resumes an interrupted run, with bit-identical results.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.earlier_run import EXAMPLES, SETTINGS_KEY
from keras_bert.checkpoints.hugging_face import (
    CONFIG,
    check_replaceable,
    open_model_directory,
    save_model_directory,
)
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.export.model_card import run_card
from keras_bert.files import read_json, write_json
from keras_bert.tasks.checks import in_order_of
from keras_bert.tasks.examples import (
    Batcher,
    Examples,
    Predict,
    make_predict_examples,
    steps_per_epoch,
)
from keras_bert.tasks.fitting import check_teacher, label_examples, reinitialize, warn_of_few_steps
from keras_bert.tasks.prepared import PreparedSet
from keras_bert.tasks.settings import Distillation, FineTuningSettings
from keras_bert.tasks.task import Task
from keras_bert.training.cluster import check_agreement, convert_lost_worker_errors, share_of
from keras_bert.training.log import read_evaluations
from keras_bert.training.loop import BestWeights, train
from keras_bert.training.objective import (
    AfterBatch,
    Objective,
    TrainingRun,
    TrainState,
    check_batch_sizes,
    checked_memory,
)
from keras_bert.training.optimizers import create_optimizer
from keras_bert.training.run_folder import is_finished, log_finished, running
from keras_bert.training.strategy import check_state_dtype, dtype_policy

# A cache of the model's outputs for examples, {examples: {output: array}}. It must be cleared when
# the weights change.
OutputCache = dict[Examples, dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class FineTuningRun(TrainingRun):
    """A fine-tuning run without its task.

    If `training.num_train_steps` is 0, `settings.num_train_epochs` determines the number of steps.
    `distillation` names the teacher, any path that `open_checkpoint` accepts; None without one.
    """

    settings: FineTuningSettings
    distillation: Distillation | None = None


# --- run ---


def run_fine_tuning(
    run: FineTuningRun,
    start: Checkpoint,
    task: Task,
    objective: Objective,
    train: PreparedSet | None,
    dev: Mapping[str, PreparedSet],
    test: Mapping[str, PreparedSet],
    best: str,
) -> dict[str, float]:
    """Fine-tunes a model, or resumes a run, and saves its files (docs/reference/outputs.md).

    `task` is the task object, of which this function creates the model, from the checkpoint
    `start`. `train` is None without training; `dev` are {suffix of the names of metrics:
    development set} and `test` {name of the prediction files: test set}, which may also be
    development sets. The highest value of the metric `best` determines the best weights.

    Returns:
        {name: value} as in results.json: the metrics, "step" (the number of steps trained),
        "best_step" (the step of the weights in model/), and the counts of examples with problems.
    """
    task.checkpoint = start
    teacher = open_checkpoint(run.distillation.teacher) if run.distillation else None
    settings, strategy, output_dir = run.settings, run.strategy, run.output_dir
    sets = {**{f"dev{suffix}": each for suffix, each in dev.items()}, **test}
    counts = task.problem_counts({"train": train, **sets} if train else sets)
    examples = train.prepared.examples if train else None
    if settings.do_train and not examples:
        raise InputError("there are no training examples; expected at least one")
    if settings.early_stopping_patience and not dev:
        raise InputError(
            f"--early_stopping_patience={settings.early_stopping_patience} needs a development set"
        )
    check_batch_sizes(strategy, run.training, settings.eval_batch_size)
    check_state_dtype(strategy, settings.optimizer_state_dtype)
    if settings.do_train:
        training = run.training
        epoch = steps_per_epoch(examples.num_groups, training.train_batch_size)
        steps = training.num_train_steps or max(1, round(epoch * settings.num_train_epochs))
        if not training.num_train_steps:
            warn_of_few_steps(steps, "--num_train_epochs", "--learning_rate")
        training = replace(training, num_train_steps=steps, evaluate_steps=epoch)
        run = replace(run, training=training)
    for name in ("model", "best"):
        check_replaceable(output_dir / name)
    data = data_record({name: each.items for name, each in sets.items()})
    record = {**run.record, **start.record(), **data}
    if task.label_names:
        record["labels"] = [*task.label_names]
    if examples is not None:
        record["train_sha256"] = examples.sha256
    if teacher:
        record["teacher_weights_sha256"] = teacher.weights_sha256
    check_agreement(strategy, {**record, **asdict(run.training)})
    if is_finished(output_dir, record, strategy):
        log_finished(output_dir)
        return read_json(output_dir / "results.json")
    if settings.do_eval and not dev:
        logging.info("No development set: evaluation is skipped")
    if settings.do_predict and not test:
        logging.info("No test set: prediction is skipped")
    if teacher:
        examples = _labeled_by_teacher(run, teacher, task, examples)
    # Load the weights first, so that no folder is created if they do not match the model.
    create_model(run, task)
    with running(output_dir, record, strategy) as folder:
        predict = make_predict_examples(
            strategy,
            task.prediction_model,
            make_batcher(run, task, settings.eval_batch_size),
            jit_compile=run.training.jit_compile,
        )
        results, outputs = {}, {}
        if settings.do_train:
            results, outputs = _train(run, task, objective, examples, dev, best, predict)
        predict = _cached(predict, outputs)  # From here on, the weights do not change.
        if settings.do_eval and dev:
            results |= _score(task, dev, best, predict)
        for name, each in test.items() if settings.do_predict else ():
            scores = {} if any(each is scored for scored in dev.values()) else results
            outputs = predict(each.prepared.examples)
            task.write_predictions(folder / name, each, outputs, scores)
        if settings.do_train and folder == output_dir:
            card = run_card(
                task.task,
                task.model.config,
                task.tokenizer.settings,
                record,
                results,
                task.label_names or (),
            )
            task.save_pretrained(output_dir / "model", card)
            write_json(output_dir / EXAMPLES, {"texts": examples.shown})
        results |= counts
        write_json(folder / "results.json", results)
    return results


def prepare_sets(
    task: Task, train: Any, dev: Mapping[str, Any], test: Mapping[str, Any]
) -> tuple[PreparedSet | None, dict[str, PreparedSet], dict[str, PreparedSet]]:
    """Preprocesses the items of all sets; `dev` and `test` are as for `run_fine_tuning`.

    A test set that is a development set is preprocessed once, so the model also runs over it once.
    """
    prepared_train = None if train is None else task.prepared_set(train, training=True)
    prepared_dev = {suffix: task.prepared_set(items) for suffix, items in dev.items()}
    dev_of = {id(each.items): each for each in prepared_dev.values()}
    prepared_test = {
        name: dev_of.get(id(items)) or task.prepared_set(items) for name, items in test.items()
    }
    return prepared_train, prepared_dev, prepared_test


def data_record(data: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Returns the entries of run.json that detect changed data, from {split: items}."""
    record = {}
    for split, items in data.items():
        digest = hashlib.sha256()
        for item in items:
            digest.update(f"{item!r}\n".encode())
        record[f"{split}_sha256"] = digest.hexdigest()
    return record


def _score(
    task: Task, dev: Mapping[str, PreparedSet], best: str, predict: Predict
) -> dict[str, float]:
    """Scores all development sets; `best` of several sets is the mean of theirs."""
    scores = {}
    for suffix, split in dev.items():
        values = task.score_outputs(split, predict(split.prepared.examples))
        scores |= {name + suffix: float(value) for name, value in values.items()}
    if len(dev) > 1:
        scores[best] = float(np.mean([scores.pop(best + suffix) for suffix in dev]))
    return scores


def _train(
    run: FineTuningRun,
    task: Task,
    objective: Objective,
    train_set: Examples,
    dev: Mapping[str, PreparedSet],
    best_metric: str,
    predict: Callable[..., Any],
) -> tuple[dict[str, float], OutputCache]:
    """Trains, and loads the best weights into the model.

    Returns "step", "best_step" and the performance for results.json, and the outputs of the best
    weights that the last evaluation computed, if it evaluated these weights.
    """
    settings, training, strategy = run.settings, run.training, run.strategy
    best_dir, model = run.output_dir / "best", task.model
    steps = training.num_train_steps
    with strategy.scope():
        optimizer, loss_scale = create_optimizer(
            model,
            settings.learning_rate,
            steps,
            int(steps * settings.warmup_proportion),
            weight_decay=settings.weight_decay,
            bias_correction=settings.bias_correction,
            layer_decay=settings.layer_decay,
            state_dtype=settings.optimizer_state_dtype,
        )
    batcher = make_batcher(run, task, training.train_batch_size * train_set.group_size)
    _, workers = batcher.share
    longest = int(train_set.lengths.max())
    outputs: OutputCache = {}  # of the last evaluation

    def evaluate(after_batch: AfterBatch) -> Mapping[str, float]:
        outputs.clear()  # The weights have changed since the last evaluation.
        cached = _cached(functools.partial(predict, after_batch=after_batch), outputs)
        return _score(task, dev, best_metric, cached)

    evaluates = settings.do_eval and dev
    best = BestWeights(
        best_metric,
        lambda step: save_best(best_dir, task, step),
        lambda: read_best_step(best_dir),
        settings.early_stopping_patience,
    )
    with checked_memory(training, workers, model.config, longest, train_set.group_size):
        _, performance = train(
            run,
            TrainState(model, optimizer, objective, loss_scale),
            lambda step: batcher.training(train_set, step),
            evaluate if evaluates else None,
            best if evaluates else None,
            train_set.num_groups,
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


# --- best weights ---
# best/ is the model directory with the best weights of a run. Its config.json also has their step,
# so weights and step are always replaced together.

_STEP = "best_step"  # the key of the step among the task's settings in config.json


def save_best(folder: Path, task: Task, step: int) -> None:
    """Saves a task object and the step of its weights in `folder`; replaces an earlier model."""
    content = task.saved_content()
    content["extra"][SETTINGS_KEY][_STEP] = step
    save_model_directory(folder, task.model, **content)


def read_best_step(folder: Path) -> int | None:
    """Returns the step of the weights in `folder`; None without the folder or in one of 0.2."""
    path = folder / CONFIG
    return read_json(path).get(SETTINGS_KEY, {}).get(_STEP) if path.is_file() else None


# --- the checkpoint and the model ---


def open_pretrained(settings: FineTuningSettings) -> Checkpoint:
    """Opens the initial checkpoint of a run and checks the settings against it."""
    checkpoint = open_checkpoint(
        settings.init_checkpoint,
        vocab_file=settings.vocab_file,
        do_lower_case=settings.do_lower_case,
        label_names=settings.label_names,
    )
    config = checkpoint.config
    if settings.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {settings.init_checkpoint} has "
            f"{config.max_position_embeddings} positions; expected at most as many"
        )
    checkpoint.require_vocab("pass a vocabulary for BERT's tokenizer as --vocab_file")
    return checkpoint


def create_model(run: FineTuningRun, task: Task) -> None:
    """Creates the model of a task object with the weights of its checkpoint.

    Layers that the loss does not depend on, such as a pooler, have `trainable=False`.
    """
    settings, strategy, start = run.settings, run.strategy, task.checkpoint
    keras.utils.set_random_seed(settings.random_seed)
    with convert_lost_worker_errors(strategy), strategy.scope():
        task.create_model(start.config, dtype_policy(settings.mixed_precision))
        _check_head(settings, start, task)
        task.load_weights(start)
        reinitialize(task, settings.random_seed)
    encoder, frozen = task.prediction_model.encoder, task.layers_without_loss
    if task.untrained and not settings.do_train:
        raise InputError(
            f"{start.path}: has no weights {', '.join(task.untrained)}; expected a model "
            "that was fine-tuned on this task, or --do_train"
        )
    if encoder.pooler not in frozen and start.config.is_decoder:
        logging.warning(
            "%s is a left-to-right model: the classifier uses the last token; transformers would "
            "use the first token, which attends only to itself",
            start.path,
        )
    for layer in frozen:
        layer.trainable = False


def make_batcher(run: FineTuningRun, task: Task, batch_size: int) -> Batcher:
    """Creates the builder of a run's batches of `batch_size` examples over all devices."""
    settings = run.settings
    return Batcher(
        batch_size,
        task.tokenizer.pad_token_id,
        settings.max_seq_length,
        settings.random_seed,
        settings.length_pool,
        share_of(run.strategy),
    )


def _check_head(settings: FineTuningSettings, start: Checkpoint, task: Task) -> None:
    num_labels = getattr(task.model, "num_labels", None)
    with start.open_weights() as stored:
        logits = stored.num_labels
    remedy = "; for a new head, run keras-bert convert SRC DST --noheads"
    remedy *= settings.do_train
    named, expected = start.named_labels, [*task.label_names]
    if logits and named and expected and in_order_of(named, expected) != expected:
        # The logits would be used for labels other than those they were trained for.
        rename = "; if the labels mean the same, rename the checkpoint's with --label_names"
        rename *= logits == num_labels
        raise InputError(
            f"{start.path}: has the labels {', '.join(named)[:200]}; "
            f"expected {', '.join(expected)[:200]}{rename}{remedy}"
        )
    if logits and num_labels and logits != num_labels:
        raise InputError(
            f"{start.path}: has a head with {logits} logits; expected {num_labels}{remedy}"
        )
    is_assumed = expected and not named and start.labels != expected
    if logits and is_assumed and not settings.do_train:
        logging.warning(
            "%s has no label names; assuming that its logits belong to the labels %s in this "
            "order; if the order differs, set --label_names",
            start.path,
            ", ".join(expected),
        )
    stored, problem_type = start.problem_type, task.problem_type_name
    if not settings.do_train and stored and problem_type and stored != problem_type:
        remedy = f"--problem_type={stored.removesuffix('_classification')}"
        raise InputError(
            f"{start.path}: has problem_type {stored}; expected {problem_type}, or {remedy}"
        )


# --- teacher ---


def _labeled_by_teacher(
    run: FineTuningRun, checkpoint: Checkpoint, task: Task, train: Examples
) -> Examples:
    """Returns the training examples with the outputs of the teacher in a checkpoint."""
    logging.info("The teacher labels %d training examples", len(train))
    strategy, policy = run.strategy, dtype_policy(run.settings.mixed_precision)
    with convert_lost_worker_errors(strategy):
        with strategy.scope():
            teacher = type(task).from_checkpoint(checkpoint, dtype=policy)
        check_teacher(task, teacher, f"--teacher={run.distillation.teacher}")
        batcher = make_batcher(run, task, run.settings.eval_batch_size)
        return label_examples(teacher, train, batcher, strategy, run.training.jit_compile)
