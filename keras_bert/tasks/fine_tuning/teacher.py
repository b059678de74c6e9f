"""Opens the teacher of a fine-tuning run, and computes its outputs for the training examples."""

from dataclasses import replace

from absl import logging

from keras_bert.tasks.examples import Examples, make_predict_examples
from keras_bert.tasks.fine_tuning.distillation import (
    add_teacher_outputs,
    check_same_tokenizer,
    check_sizes,
)
from keras_bert.tasks.fine_tuning.model import batch_settings, make_task_object
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.training.cluster import convert_lost_worker_errors


def open_teacher(run: FineTuningRun, student: Pretrained) -> Pretrained:
    """Opens the fine-tuned model from which the model of a run learns.

    Raises:
        InputError: the teacher cannot be opened, its vocabulary or tokenizer differs, or it is
            narrower than the student, the initial checkpoint of the run.
    """
    teacher, where = open_pretrained(_settings(run)), f"--teacher={run.teacher}"
    check_same_tokenizer(
        (student.vocab, student.tokenizer_settings, str(student.checkpoint.path)),
        (teacher.vocab, teacher.tokenizer_settings, where),
    )
    check_sizes(student.config, teacher.config, where)
    return teacher


def label(run: FineTuningRun, teacher: Pretrained, task: FineTuningTask) -> Examples:
    """Returns the training examples with the outputs of the teacher.

    Raises:
        InputError: the teacher has no head for the task, or other labels.
    """
    logging.info("The teacher labels %d training examples", len(task.train))
    run = replace(run, settings=_settings(run))
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


def _settings(run: FineTuningRun) -> FineTuningSettings:
    return replace(
        run.settings,
        init_checkpoint=run.teacher,
        vocab_file="",
        do_lower_case=None,
        label_names=None,
        num_frozen_layers=0,
        do_train=False,
        do_predict=True,
    )
