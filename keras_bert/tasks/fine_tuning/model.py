"""Creates the task object, the optimizer and the batch settings of a fine-tuning run."""

from dataclasses import replace

import keras
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.examples import BatchSettings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.tasks.fitting import reinitialize
from keras_bert.tasks.task import Task
from keras_bert.training.cluster import convert_lost_worker_errors, share_of
from keras_bert.training.optimizers import AdamWeightDecay, layer_decay_multipliers
from keras_bert.training.schedules import LinearWarmupDecay
from keras_bert.training.strategy import dtype_policy


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
        model = task_object.model
        num_labels = getattr(model, "num_labels", None)
        _check_head(settings, start, task, num_labels, is_teacher)
        report = start.load_into(model)
        new_weights = {
            variable.path: keras.ops.convert_to_numpy(variable.value)
            for variable in model.weights
            if variable.path in report.new
        }
        reinitialize(model, new_weights, settings.random_seed)  # As in `fit`.
    encoder, frozen = task_object.prediction_model.encoder, task_object.layers_without_loss
    if encoder.pooler in frozen:
        # The outputs do not depend on the pooler, and public models for such tasks have none.
        new = [path for path in report.new if not path.startswith("encoder/pooler/")]
        report = replace(report, new=tuple(new))
    logging.info("%s", report)
    if report.new and not settings.do_train:
        raise InputError(
            f"{start.path}: has no weights {', '.join(report.new)}; expected a model that was "
            f"fine-tuned on this task{'' if is_teacher else ', or --do_train'}"
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


def batch_settings(run: FineTuningRun, pad_token_id: int, batch_size: int) -> BatchSettings:
    """Returns the settings of a run's batches, with `batch_size` examples over all devices."""
    settings = run.settings
    return BatchSettings(
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
    known = start.problem_type
    if not settings.do_train and known and task.problem_type and known != task.problem_type:
        raise InputError(f"{start.path}: has problem_type {known}; expected {task.problem_type}")
