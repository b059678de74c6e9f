"""Defines the settings of an export, and which tasks and formats use them."""

from dataclasses import dataclass, fields
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.spec import INT8_ENGINES
from keras_bert.tasks.loading import TASK_OF, Source

# Task -> the settings that its SavedModel uses. An ONNX file converts token ids to logits and uses
# none of them.
_USED_SETTINGS = {
    "classification": ("max_seq_length", "pair"),
    "question_answering": (
        "max_seq_length",
        "max_query_length",
        "doc_stride",
        "n_best_size",
        "max_answer_length",
        "version_2_with_negative",
        "null_score_diff_threshold",
    ),
    "ner": ("max_seq_length",),
    "fill_mask": ("max_seq_length", "top_k"),
    "embedding": ("max_seq_length", "normalize"),
}
TASKS = tuple(_USED_SETTINGS)
_ALWAYS_USED = ("model_dir", "export_dir", "task", "format")


@dataclass(frozen=True)
class ExportSettings:
    """The model, task and format of an export, and the settings of its task.

    A setting of the task that is None gets the value that is stored with the model or its run, or
    else the task's default.

    Attributes:
        model_dir: a run's model/, the run's folder, or any checkpoint that `open_checkpoint` opens.
        export_dir: DIR/<version>, for TensorFlow Serving; must not exist.
        task: one of TASKS; if empty, the task of the model's heads.
        format: `saved_model` or `onnx`.
        int8: whether `onnx` stores weights as int8, or a SavedModel gets an int8 file for
            onnxruntime; None means False.
        engines: the engines besides TensorFlow that can run a SavedModel's network, from
            `onnxruntime` and `openvino`.
        compute_type: dtype of a SavedModel's matrix products, `float32` or `bfloat16`; None means
            `float32`.
        max_seq_length: maximum number of tokens in a text, pair or window.
        pair: whether a classifier takes two texts.
        normalize: whether embeddings are scaled to length 1; defaults to whether the model's
            modules.json (sentence-transformers) contains a Normalize module.
        top_k: number of tokens to return for each mask; defaults to 5.

    The other settings are those of a `QuestionAnswerer`; see `AnswerSettings`.
    """

    model_dir: str
    export_dir: str
    task: str = ""
    format: str = "saved_model"
    int8: bool | None = None
    compute_type: str | None = None
    engines: tuple[str, ...] | None = None
    max_seq_length: int | None = None
    pair: bool | None = None
    normalize: bool | None = None
    top_k: int | None = None
    max_query_length: int | None = None
    doc_stride: int | None = None
    n_best_size: int | None = None
    max_answer_length: int | None = None
    version_2_with_negative: bool | None = None
    null_score_diff_threshold: float | None = None

    def task_of(self, source: Source) -> str:
        """Returns the given task, or else the task of the model's heads.

        Raises InputError if the heads are unknown, or belong to another task than the given one.
        """
        checkpoint = source.checkpoint
        task = TASK_OF.get(checkpoint.architecture)
        if self.task in ("", task):
            if task is None:
                raise InputError(
                    f"{checkpoint.path}: unknown model class {checkpoint.architecture}; expected "
                    f"--task={'|'.join(TASKS)}"
                )
            return task
        # The head weights of classifiers and taggers have the same names, so they would be loaded
        # without an error. Any model can be exported for embeddings, because it has an encoder.
        if task is not None and self.task != "embedding":
            raise InputError(
                f"--task={self.task}: {checkpoint.path} is a {checkpoint.architecture}; expected "
                f"--task={task}, or a model that was trained for {self.task}"
            )
        return self.task

    def given(self, task: str, source: Source) -> dict[str, Any]:
        """Returns the keyword arguments for `from_source` of the task's class.

        For a SavedModel, these are the settings that are not None. For an ONNX file, they set
        `max_seq_length` to the model's number of positions.
        """
        if self.format != "saved_model":  # An ONNX file takes token ids instead of texts.
            longest = {"max_seq_length": source.checkpoint.config.max_position_embeddings}
            return longest | ({"max_query_length": 1} if task == "question_answering" else {})
        values = {name: getattr(self, name) for name in _USED_SETTINGS[task]}
        return {name: value for name, value in values.items() if value is not None}

    def check_unused(self, task: str) -> None:
        """Raises InputError for a setting that is not None but that the task or format ignores."""
        is_saved_model = self.format == "saved_model"
        if is_saved_model and self.int8 and not self.engines:
            raise InputError(
                "--int8 has no effect with --format=saved_model without --engines; expected "
                f"--engines={','.join(INT8_ENGINES)}, or --format=onnx"
            )
        used = ("int8",)
        if is_saved_model:
            used = ("compute_type", *_USED_SETTINGS[task], "engines")
            used += ("int8",) if self.engines else ()
        for field in fields(self):
            if field.name in (*_ALWAYS_USED, *used) or getattr(self, field.name) is None:
                continue
            raise InputError(
                f"--{field.name} has no effect with --task={task} --format={self.format}; expected "
                f"only {', '.join(f'--{name}' for name in used)}"
            )
