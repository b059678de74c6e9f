"""The settings of an export, and which task and format read which of them."""

from dataclasses import dataclass, fields
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.tasks.loading import TASK_OF, Source

# Task -> the settings that its SavedModel reads. The other formats take token ids and give logits,
# whatever the task.
_READ = {
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
TASKS = tuple(_READ)
_ALWAYS_READ = ("model_dir", "export_dir", "task", "format")


@dataclass(frozen=True)
class ExportSettings:
    """What is exported, and how. None takes what lies beside the model, else the default.

    Attributes:
        model_dir: a run's model/, its folder, or whatever `open_checkpoint` opens.
        export_dir: DIR/<version>, for TensorFlow Serving; must not exist.
        task: one of TASKS; empty for what the model's heads are for.
        format: `saved_model`, `onnx` or `litert`.
        int8: dynamic int8 weights (`onnx` and `litert`); by default not.
        compute_type: of a SavedModel's products, `float32` (the default) or `bfloat16`.
        max_seq_length: pieces of a text, pair or window.
        pair: whether a classifier takes two texts.
        normalize: whether embeddings are brought to length 1; by default as sentence-transformers'
            modules.json says.
        top_k: pieces that fill a mask; by default 5.
        max_query_length: as run_squad's flag, like the rest.
        doc_stride: pieces between the starts of windows.
        n_best_size: candidates a question.
        max_answer_length: pieces of an answer.
        version_2_with_negative: whether questions may have no answer.
        null_score_diff_threshold: null odds above it give the empty answer.
    """

    model_dir: str
    export_dir: str
    task: str = ""
    format: str = "saved_model"
    int8: bool | None = None
    compute_type: str | None = None
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
        """Returns the task: the given one, else the one that the model's heads are for.

        Args:
            source: the model.

        Raises:
            InputError: the heads are unknown, or of another task than the given one.
        """
        checkpoint = source.checkpoint
        task = TASK_OF.get(checkpoint.architecture)
        if self.task in ("", task):
            if task is None:
                raise InputError(
                    f"{checkpoint.path}: names no heads that are known "
                    f"({checkpoint.architecture}); expected --task={'|'.join(TASKS)}"
                )
            return task
        # A classifier's and a tagger's head have the same name; any model has an encoder.
        if task is not None and self.task != "embedding":
            raise InputError(
                f"--task={self.task}: {checkpoint.path} is a {checkpoint.architecture}; expected "
                f"--task={task} or a model that was trained for it"
            )
        return self.task

    def given(self, task: str, source: Source) -> dict[str, Any]:
        """Returns the settings of texts that are given, as arguments of `from_source`.

        Args:
            task: the task.
            source: the model.
        """
        if self.format != "saved_model":  # It reads token ids, so no length of texts matters.
            longest = {"max_seq_length": source.checkpoint.config.max_position_embeddings}
            return longest | ({"max_query_length": 1} if task == "question_answering" else {})
        values = {name: getattr(self, name) for name in _READ[task]}
        return {name: value for name, value in values.items() if value is not None}

    def check_read(self, task: str) -> None:
        """Refuses a setting that is given and would not be read.

        Args:
            task: what is served.

        Raises:
            InputError: there is one.
        """
        read = ("compute_type", *_READ[task]) if self.format == "saved_model" else ("int8",)
        for field in fields(self):
            if field.name in (*_ALWAYS_READ, *read) or getattr(self, field.name) is None:
                continue
            raise InputError(
                f"--{field.name} does nothing for --task={task} --format={self.format}; expected "
                f"of {', '.join(f'--{name}' for name in read)}"
            )
