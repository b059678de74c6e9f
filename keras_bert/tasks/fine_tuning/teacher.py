"""Opens the teacher of a fine-tuning run, and computes its outputs for the training examples."""

from dataclasses import replace

from absl import logging

from keras_bert.tasks.fine_tuning.distillation import (
    add_teacher_outputs,
    check_same_tokenizer,
    check_sizes,
)
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.model import batch_settings, make_task_object
from keras_bert.tasks.fine_tuning.predict import make_predict_examples
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.training.cluster import convert_lost_worker_errors


class Teacher:
    """The fine-tuned model that the model of a run learns from, once or for each of several seeds.

    Args:
        run: the run, whose `teacher` is opened.
        student: the initial checkpoint of the run.

    Raises:
        InputError: the teacher cannot be opened, its vocabulary or tokenizer differs, or it is
            narrower than the student.
    """

    def __init__(self, run: FineTuningRun, student: Pretrained):
        self._settings = replace(
            run.settings,
            init_checkpoint=run.teacher,
            vocab_file="",
            do_lower_case=None,
            label_names=None,
            num_frozen_layers=0,
            do_train=False,
            do_predict=True,
        )
        self._start = start = open_pretrained(self._settings)
        where = f"--teacher={run.teacher}"
        check_same_tokenizer(
            (student.vocab, student.tokenizer_settings, str(student.checkpoint.path)),
            (start.vocab, start.tokenizer_settings, where),
        )
        check_sizes(student.config, start.config, where)
        self._labeled: Examples | None = None

    @property
    def record(self) -> dict[str, object]:
        """The entries of run.json that detect a changed teacher."""
        return {"teacher_weights_sha256": self._start.weights_sha256}

    def label(self, run: FineTuningRun, task: FineTuningTask) -> Examples:
        """Returns the training examples with the outputs of the teacher.

        The teacher runs at the first call only.

        Raises:
            InputError: the teacher has no head for the task, or other labels.
        """
        if self._labeled is None:
            logging.info("The teacher labels %d training examples", len(task.train))
            with convert_lost_worker_errors(run.strategy):
                self._labeled = self._label(replace(run, settings=self._settings), task)
        return self._labeled

    def _label(self, run: FineTuningRun, task: FineTuningTask) -> Examples:
        task_object = make_task_object(run, self._start, task, is_teacher=True)
        network = task_object.prediction_model
        predict = make_predict_examples(
            run.strategy,
            network,
            batch_settings(run, task_object.tokenizer.pad_token_id, self._settings.eval_batch_size),
            jit_compile=run.training.jit_compile,
        )
        return add_teacher_outputs(task.train, predict(task.train), network.per_token)
