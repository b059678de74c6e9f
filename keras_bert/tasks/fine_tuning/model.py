"""The model and the optimizer of a fine-tuning run: a start and a task in; both, ready, out."""

import keras
import tensorflow as tf
from absl import logging

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.layer_decay import layer_decay_multipliers
from keras_bert.optimization.schedules import LinearWarmupDecay
from keras_bert.tasks.fine_tuning.settings import FineTuningSettings
from keras_bert.tasks.fine_tuning.start import Start
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.training.cluster import lost_workers_end
from keras_bert.training.strategy import dtype_policy


def make_model(
    settings: FineTuningSettings,
    strategy: tf.distribute.Strategy,
    start: Start,
    task: FineTuningTask,
) -> keras.Model:
    """Makes the task's model and fills it from the checkpoint.

    Args:
        settings: precision, seed, frozen layers, and whether the model is trained.
        strategy: the devices.
        start: the checkpoint.
        task: says which model.

    Returns:
        The model; weights that are not to be trained are marked so.

    Raises:
        InputError: weights that do not fit, or a head that tells something else than the task asks.
    """
    checkpoint = start.checkpoint
    _check_head(settings, start, task)
    keras.utils.set_random_seed(settings.random_seed)
    with lost_workers_end(strategy), strategy.scope():
        model = task.make_model(start.config, dtype_policy(settings.mixed_precision))
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
    elif start.config.is_decoder:
        logging.warning(
            "%s is a left-to-right model: the classifier reads the last piece, where transformers "
            "would read the first, which sees itself alone",
            checkpoint.path,
        )
    for layer in [encoder.embeddings, *encoder.blocks][: settings.num_frozen_layers]:
        layer.trainable = False
    return model


def make_optimizer(
    settings: FineTuningSettings, num_train_steps: int, config: BertConfig
) -> keras.optimizers.Optimizer:
    """Makes the optimizer with its schedule.

    Args:
        settings: rates and decays.
        num_train_steps: the step at which the learning rate reaches 0.
        config: says how many layers there are.

    Returns:
        AdamW, not built yet.
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
