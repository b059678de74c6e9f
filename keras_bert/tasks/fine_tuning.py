"""Fine-tunes a task object from a checkpoint and saves metrics, predictions and model/.

1. Read the data of the run, as a `FineTuningTask`.
2. Create the task object with its head and load the checkpoint.
3. Create the run's folder.
4. Train, evaluate after each epoch and keep the best weights in best/.
5. Load the best weights; write metrics, TensorBoard summaries and predictions.
6. Write model/ and results.json.

The same command resumes an interrupted run, with bit-identical results.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
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
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
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
from keras_bert.tasks.fitting import check_same_tokenizer, check_sizes, label_examples, reinitialize
from keras_bert.tasks.prepared import (
    Prepared,
    Processor,
    decoded,
    gathered,
    report_truncation,
)
from keras_bert.tasks.settings import Distillation, FineTuningSettings
from keras_bert.tasks.task import Task
from keras_bert.training.cluster import check_agreement, convert_lost_worker_errors, share_of
from keras_bert.training.log import Board, read_evaluations
from keras_bert.training.loop import BestWeights, train
from keras_bert.training.objective import (
    AfterBatch,
    Objective,
    TrainingRun,
    TrainState,
    check_batch_sizes,
    checked_memory,
)
from keras_bert.training.optimizers import AdamWeightDecay, LossScale, layer_decay_multipliers
from keras_bert.training.run_folder import is_finished, log_finished, running
from keras_bert.training.schedules import LinearWarmupDecay
from keras_bert.training.strategy import check_state_dtype, dtype_policy

# Maximum number of rows in a TensorBoard table of wrong predictions.
SHOWN = 100

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


class EvaluationSet:
    """The n items of a development or test set, preprocessed once.

    Attributes:
        items: the texts, sentences or questions.
        labels: the labels of the items, if they are not part of them; None for a test set.
    """

    def __init__(self, items: Any, processor: Processor, prepared: Prepared, labels: Any = None):
        self.items, self.processor, self.prepared, self.labels = items, processor, prepared, labels

    def answers(self, predict: Predict) -> dict[str, Any]:
        """Runs the model and decodes its outputs, {name: [n, ...]}."""
        outputs = predict(self.prepared.examples)
        return gathered(list(decoded(self.processor, self.prepared, outputs)))


class FineTuningTask:
    """The data of a fine-tuning run: training examples, scores and prediction files.

    A task overrides `score`, `show` and `write_predictions`, and sets the attributes that differ
    from those here. The argument `predict` of its methods is a function that runs the model over
    Examples and caches the result. For n examples of T tokens in total, it returns
    {output: [n, ...]}, or for models with one output per token (`per_token`) {output: [T, ...]},
    aligned with `input_ids`.

    Attributes:
        task_class: the class of the task object.
        processor: the tokenizer and the settings of the task object.
        objective: the losses to minimize and the metrics to report during training.
        train: the training examples with the labels for `objective`; None without training.
        dev: the development sets, for `score`; None or {} without one.
        test: the test sets, for `write_predictions`; None or {} without one.
        best: the metric of `score` whose highest value determines the best weights.
        labels: names of the model's labels in the order of its logits; None if it has no labels.
        problem_type: the `problem_type` of a classifier in transformers; None for other tasks.
        data: {split: items} of the development and test sets, for the checksums in run.json; the
            `repr` of an item must contain all its data.
        counts: {name in results.json: number} of examples with problems, beyond truncation.
        truncated: {split: number of truncated examples}; empty for tasks that never truncate.
    """

    task_class: type[Task]
    processor: Processor
    objective: Objective
    train: Examples | None = None
    dev: Any = None
    test: Any = None
    best: str = "accuracy"
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    data: Mapping[str, Iterable[object]] = {}
    counts: Mapping[str, int] = {}
    truncated: Mapping[str, int] = {}

    def make(self, config: BertConfig, dtype: str) -> Task:
        """Creates the task object with a newly initialized model of a dtype policy."""
        settings = self.processor.settings
        model = self.task_class.make_model(config, settings, dtype)
        return self.task_class(model, self.processor.tokenizer, settings)

    def report_truncation(self, splits: Mapping[str, Prepared], texts: str) -> None:
        """Counts the truncated texts of each split, and logs a warning if there are any."""
        limit = f"{self.task_class.limit}={getattr(self.processor.settings, self.task_class.limit)}"
        self.truncated = {
            name: report_truncation(prepared.truncated, f"{texts} ({name})", limit)
            for name, prepared in splits.items()
        }

    def score(self, predict: Predict) -> Mapping[str, float]:
        """Returns {metric: value} on the development set, after each epoch and at the end."""
        raise NotImplementedError

    def show(self, predict: Predict, board: Board) -> None:
        """Writes tables and curves to TensorBoard after the last `score`."""

    def write_predictions(self, predict: Predict, folder: Path) -> None:
        """Writes the prediction files of the test set."""
        raise NotImplementedError

    @functools.cached_property
    def record(self) -> dict[str, object]:
        """The entries of run.json that detect changed labels and data."""
        record: dict[str, object] = {} if self.labels is None else {"labels": [*self.labels]}
        if self.train is not None:
            record["train_sha256"] = self.train.sha256
        for split, items in self.data.items():
            digest = hashlib.sha256()
            for item in items:
                digest.update(f"{item!r}\n".encode())
            record[f"{split}_sha256"] = digest.hexdigest()
        return record


# --- run ---


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
    teacher = _open_teacher(run, start) if run.distillation else None
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
    if settings.do_eval and not task.dev:
        logging.info("No development set: evaluation is skipped")
    if settings.do_predict and not task.test:
        logging.info("No test set: prediction is skipped")
    if teacher:
        task.train = _labeled_by_teacher(run, teacher, task)
    # Load the weights first, so that no folder is created if they do not match the model.
    task_object = make_task_object(run, start, task)
    with running(output_dir, record, strategy) as folder:
        predict = make_predict_examples(
            strategy,
            task_object.prediction_model,
            make_batcher(run, task_object.tokenizer.pad_token_id, settings.eval_batch_size),
            jit_compile=run.training.jit_compile,
        )
        results, outputs = {}, {}
        if settings.do_train:
            results, outputs = _train(run, task, task_object, predict)
        predict = _cached(predict, outputs)  # From here on, the weights do not change.
        if settings.do_eval and task.dev:
            results |= {name: float(value) for name, value in task.score(predict).items()}
            _show(task, predict, folder, results.get("best_step", 0))
        if settings.do_predict and task.test:
            task.write_predictions(predict, folder)
        if settings.do_train and folder == output_dir:
            card = run_card(
                task_object.task,
                task_object.model.config,
                task_object.tokenizer.settings,
                record,
                results,
                task_object.label_names or (),
            )
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
    if settings.early_stopping_patience and not task.dev:
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
    epoch = steps_per_epoch(task.train.num_groups, training.train_batch_size)
    steps = training.num_train_steps or max(1, round(epoch * run.settings.num_train_epochs))
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
    batcher = make_batcher(run, task_object.tokenizer.pad_token_id, rows)
    _, workers = batcher.share
    longest = int(task.train.lengths.max())
    outputs: OutputCache = {}  # of the last evaluation

    def evaluate(after_batch: AfterBatch) -> Mapping[str, float]:
        outputs.clear()  # The weights have changed since the last evaluation.
        return task.score(_cached(functools.partial(predict, after_batch=after_batch), outputs))

    evaluates = settings.do_eval and task.dev
    best = BestWeights(
        task.best,
        lambda step: save_best(best_dir, task_object, step),
        lambda: read_best_step(best_dir),
        settings.early_stopping_patience,
    )
    with checked_memory(training, workers, model.config, longest, task.train.group_size):
        _, performance = train(
            run,
            TrainState(model, optimizer, task.objective, loss_scale),
            lambda step: batcher.training(task.train, step),
            evaluate if evaluates else None,
            best if evaluates else None,
            task.train.num_groups,
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
    content = task_object.saved_content()
    content["extra"][SETTINGS_KEY][_STEP] = step
    save_model_directory(folder, task_object.model, **content)


def read_best_step(folder: Path) -> int | None:
    """Returns the step of the weights in `folder`; None without the folder or in one of 0.2."""
    path = folder / CONFIG
    return read_json(path).get(SETTINGS_KEY, {}).get(_STEP) if path.is_file() else None


# --- the checkpoint and its task object ---


def open_pretrained(settings: FineTuningSettings) -> Checkpoint:
    """Opens the initial checkpoint of a run and checks the settings against it.

    Raises:
        InputError: the checkpoint cannot be opened; its number of positions, layers or logits does
            not match the settings; or the vocabulary is missing or does not have the model's size.
    """
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


def make_task_object(
    run: FineTuningRun, start: Checkpoint, task: FineTuningTask, is_teacher: bool = False
) -> Task:
    """Creates the task object and loads the checkpoint's weights into its model.

    Error messages about a teacher do not advise flags that apply only to the run's own model.
    Layers that the loss does not depend on, such as a pooler, have `trainable=False`.

    Raises:
        InputError: the weights do not match the model, or the checkpoint's head does not match the
            task.
    """
    settings, strategy = run.settings, run.strategy
    keras.utils.set_random_seed(settings.random_seed)
    with convert_lost_worker_errors(strategy), strategy.scope():
        task_object = task.make(start.config, dtype_policy(settings.mixed_precision))
        num_labels = getattr(task_object.model, "num_labels", None)
        _check_head(settings, start, task, num_labels, is_teacher)
        task_object.load_weights(start)
        reinitialize(task_object, settings.random_seed)
    encoder, frozen = task_object.prediction_model.encoder, task_object.layers_without_loss
    if task_object.untrained and not settings.do_train:
        raise InputError(
            f"{start.path}: has no weights {', '.join(task_object.untrained)}; expected a model "
            f"that was fine-tuned on this task{'' if is_teacher else ', or --do_train'}"
        )
    if encoder.pooler not in frozen and start.config.is_decoder:
        logging.warning(
            "%s is a left-to-right model: the classifier uses the last token; transformers would "
            "use the first token, which attends only to itself",
            start.path,
        )
    for layer in frozen:
        layer.trainable = False
    return task_object


def make_optimizer(
    settings: FineTuningSettings, num_train_steps: int, config: BertConfig
) -> keras.optimizers.Optimizer:
    """Creates the AdamW optimizer of a run; its method `build` creates its variables.

    The learning rate increases during the warm-up, and then decreases to 0 at `num_train_steps`.
    """
    warmup = int(num_train_steps * settings.warmup_proportion)
    return AdamWeightDecay(
        LinearWarmupDecay(settings.learning_rate, num_train_steps, warmup),
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
        learning_rate_multipliers=layer_decay_multipliers(
            settings.layer_decay, config.num_hidden_layers
        ),
        state_dtype=settings.optimizer_state_dtype,
    )


def make_batcher(run: FineTuningRun, pad_token_id: int, batch_size: int) -> Batcher:
    """Creates the builder of a run's batches of `batch_size` examples over all devices."""
    settings = run.settings
    return Batcher(
        batch_size,
        pad_token_id,
        settings.max_seq_length,
        settings.random_seed,
        settings.length_pool,
        share_of(run.strategy),
    )


def _check_head(
    settings: FineTuningSettings,
    start: Checkpoint,
    task: FineTuningTask,
    num_labels: int | None,
    is_teacher: bool,
) -> None:
    with start.open_weights() as stored:
        logits = stored.num_labels
    remedy = "; for a new head, run keras-bert convert SRC DST --noheads"
    remedy *= settings.do_train
    named, expected = start.named_labels, [*(task.labels or ())]
    if logits and named and expected and in_order_of(named, expected) != expected:
        # The logits would be used for labels other than those they were trained for.
        rename = "; if the labels mean the same, rename the checkpoint's with --label_names"
        rename *= logits == num_labels and not is_teacher
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
            "order%s",
            start.path,
            ", ".join(expected),
            "" if is_teacher else "; if the order differs, set --label_names",
        )
    stored = start.problem_type
    if not settings.do_train and stored and task.problem_type and stored != task.problem_type:
        raise InputError(f"{start.path}: has problem_type {stored}; expected {task.problem_type}")


# --- teacher ---


def _open_teacher(run: FineTuningRun, student: Checkpoint) -> Checkpoint:
    """Opens the fine-tuned model from which the model of a run learns.

    Raises:
        InputError: the teacher cannot be opened, its vocabulary or tokenizer differs, or it is
            narrower than the student, the initial checkpoint of the run.
    """
    teacher = open_pretrained(_teacher_settings(run))
    where = f"--teacher={run.distillation.teacher}"
    check_same_tokenizer(
        (student.vocab, student.tokenizer_settings, str(student.path)),
        (teacher.vocab, teacher.tokenizer_settings, where),
    )
    check_sizes(student.config, teacher.config, where)
    return teacher


def _labeled_by_teacher(run: FineTuningRun, teacher: Checkpoint, task: FineTuningTask) -> Examples:
    """Returns the training examples with the outputs of the teacher.

    Raises:
        InputError: the teacher has no head for the task, or other labels.
    """
    logging.info("The teacher labels %d training examples", len(task.train))
    run = replace(run, settings=_teacher_settings(run))
    with convert_lost_worker_errors(run.strategy):
        task_object = make_task_object(run, teacher, task, is_teacher=True)
        batcher = make_batcher(
            run, task_object.tokenizer.pad_token_id, run.settings.eval_batch_size
        )
        return label_examples(
            task_object, task.train, batcher, run.strategy, run.training.jit_compile
        )


def _teacher_settings(run: FineTuningRun) -> FineTuningSettings:
    return replace(
        run.settings,
        init_checkpoint=run.distillation.teacher,
        vocab_file="",
        do_lower_case=None,
        label_names=None,
        do_train=False,
        do_predict=True,
    )
