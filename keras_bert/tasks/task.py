"""Defines Task, the base class of task objects such as TextClassifier.

    strings -> processor.preprocess -> model -> processor.decode -> answers

`predict`, `evaluate`, the programs and exported models all run these steps, and differ only in how
they run the model. Preprocessing and decoding are TensorFlow graphs, so TensorFlow is required with
every Keras backend.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, check_dtype, check_max_seq_length
from keras_bert.checkpoints.earlier_run import SETTINGS_KEY
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.engines import Engine
from keras_bert.export.inputs import failed_check
from keras_bert.export.saved_model import ServedTask
from keras_bert.export.task_export import export_task
from keras_bert.models.layers import skip_encoder_weights
from keras_bert.tasks.checks import check_count
from keras_bert.tasks.examples import Batcher, Examples, ModelRunner
from keras_bert.tasks.fitting import Trainer, check_teacher
from keras_bert.tasks.prepared import (
    Arrays,
    Prepared,
    PreparedSet,
    Processor,
    as_array,
    decoded,
    gathered,
    prepare,
    with_strings,
)
from keras_bert.tasks.settings import Distillation, FitSettings
from keras_bert.tasks.text_processor import TRUNCATED, ArraySteps, LongText
from keras_bert.text.tokenizer import BertTokenizer

# A signature of an export, which takes arrays by name.
Signature = Callable[..., Mapping[str, np.ndarray]]
# A value per text for each input.
Columns = Sequence[Sequence[Any]]


_SHOWN_LABELS = 10  # in the representation of an object
EXAMPLE_TEXT = "The Norman dynasty had a major impact on medieval Europe."


def forgets_labels(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a `fit` that fails before the training remove the labels that it took from its data."""

    @functools.wraps(fit)
    def fit_or_forget(self: "Task", *arguments: Any, **options: Any) -> Any:
        settings, needs_labels = self.settings, self.needs_labels
        try:
            return fit(self, *arguments, **options)
        except BaseException:  # Ctrl-C, too: the model may not have its weights yet.
            if needs_labels and self.trainer is None:
                self.settings, self._model = settings, None
                self.processor = self.make_processor()
                self.absent, self.untrained, self.initial_values = (), (), {}
            raise

    return fit_or_forget


class Task:
    """A Keras model with its tokenizer and task settings.

    Subclasses implement the abstract methods and add `fit`, `evaluate` and `predict`. An object
    loaded from an export has no model and no tokenizer, and can only predict.

    Args:
        model: a model from keras_bert.models; None for an export, or to create it later.
        tokenizer: the tokenizer for the model's vocabulary; None for an export.
        settings: a frozen dataclass of the task's settings, with at least `max_seq_length`.

    Attributes:
        processor: preprocesses strings and decodes outputs, with TensorFlow operations; None for an
            export.
        absent: paths of the weights that the checkpoint did not contain.
        untrained: the absent weights that the task needs; empty after `fit`.
        initial_values: {path: value} of the absent weights when the checkpoint was loaded.
        checkpoint: the checkpoint that the object was loaded from; None after `fit`, or if it was
            not loaded from one.
        signatures: all signatures of an export by name; empty for other objects.
        engine: the engine that runs an export; None for other objects.
        trainer: the training step of the last `fit`; None before.
        shown: up to three short texts from the data of the last `fit`, which an export contains.
    """

    task: ClassVar[str]
    settings_class: ClassVar[type]
    model_class: ClassVar[type[keras.Model]]
    processor_class: ClassVar[type[Processor]]
    served_class: ClassVar[type[ServedTask]]  # The tf.Module whose signatures are exported.
    example: ClassVar[Mapping[str, str]] = {"text": EXAMPLE_TEXT}
    # The arguments of the preprocessing; an export may have only the first as its input.
    argument_names: ClassVar[tuple[str, ...]] = ("text",)
    optional_weights: ClassVar[tuple[str, ...]] = ()
    # The setting to which texts are truncated; "" if they are never truncated.
    limit: ClassVar[str] = "max_seq_length"
    items_name: ClassVar[str] = "texts"
    # The `ExportOptions` that a SavedModel of the task uses.
    export_options: ClassVar[tuple[str, ...]] = ("max_seq_length",)
    special_tokens: ClassVar[bool] = False  # Whether the tokenizer recognizes [MASK] in texts.
    # The names for users, which `dir` lists. The others are for the modules of this package.
    _public: ClassVar[tuple[str, ...]] = (
        *("from_pretrained", "fit", "evaluate", "predict", "save_pretrained", "export"),
        *("model", "tokenizer", "settings"),
    )

    def __init__(self, model: keras.Model | None, tokenizer: BertTokenizer | None, settings: Any):
        if model is not None:
            positions = model.config.max_position_embeddings
            check_max_seq_length(settings.max_seq_length, positions, shortest=3)
        self._model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.processor: Processor | None = self.make_processor() if tokenizer else None
        self.absent: tuple[str, ...] = ()
        self.untrained: tuple[str, ...] = ()
        self.checkpoint: Checkpoint | None = None
        self.signatures: Mapping[str, Signature] = {}
        self._served_inputs: Mapping[str, Sequence[str]] = {}
        self._dtype: str | None = None  # The dtype policy of a model that is created later.
        self.engine: Engine | None = None
        self.trainer: Trainer | None = None
        self.shown: Sequence[Sequence[str]] = ()
        self.initial_values: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        model = "none yet" if self.needs_labels else "export"
        if self._model is not None:
            config, count = self._model.config, self._model.count_params()
            model = (
                f"{type(self._model).__name__}(layers={config.num_hidden_layers}, "
                f"hidden_size={config.hidden_size}, parameters={count:,})"
            )
        parts = [f"task={self.task}", f"model={model}"]
        if self.label_names:
            shown = [*self.label_names[:_SHOWN_LABELS]]
            more = f" of {len(self.label_names)}" * (len(self.label_names) > _SHOWN_LABELS)
            parts.append(f"labels={shown}{more}")
        parts.append(f"max_seq_length={self.settings.max_seq_length}")
        if self.untrained:
            parts.append(f"untrained={[*self.untrained]}")
        return f"<{type(self).__name__} {', '.join(parts)}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name[0] == "_" or name in self._public]

    # Implemented or extended by subclasses.

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: Checkpoint, **settings: Any) -> Any:
        """Creates the settings: `settings`, or else those of the checkpoint, or else defaults."""
        raise NotImplementedError

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> Any:
        """Creates the settings from the content of an export's export.json."""
        names = [field.name for field in dataclasses.fields(cls.settings_class)]
        saved = {name: info[name] for name in names if name in info}
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in saved.items()}
        if "long_text" in names:
            values["long_text"] = LongText(
                info.get("long_text", TRUNCATED.strategy), info.get("window_stride", 0)
            )
        return cls.settings_class(**values)

    @classmethod
    def make_model(cls, config: BertConfig, settings: Any, dtype: str | None) -> keras.Model:
        """Creates a newly initialized model of a dtype policy for settings of the task."""
        return cls.model_class(config, dtype=dtype)

    def make_processor(self) -> Processor:
        """Creates the processor for the current settings."""
        return self.processor_class(self.tokenizer, self.settings)

    def export_entries(self) -> dict[str, Any]:
        """Returns the entries of export.json for the labels, preprocessing and decoding."""
        long_text = getattr(self.settings, "long_text", None)
        labels = {"labels": [*self.label_names]} if self.label_names else {}
        settings = {"max_seq_length": self.settings.max_seq_length}
        return labels | settings | (long_text.to_dict() if long_text else {})

    def example_request(self) -> dict[str, str]:
        """Returns {input name: string} for a warm-up request to a server."""
        return dict(self.example)

    @property
    def label_names(self) -> Sequence[str]:
        """The model's label names in the order of its logits; empty without labels."""
        return getattr(self.settings, "labels", ())

    @property
    def config(self) -> BertConfig:
        """The config of the model, or of the checkpoint that a model will be created from."""
        return (self.checkpoint if self._model is None else self._model).config

    @property
    def is_export(self) -> bool:
        """Whether the object was loaded from an export."""
        return bool(self.signatures)

    @property
    def needs_labels(self) -> bool:
        """Whether there is no model yet, because the labels of its new head are not known."""
        return not self.is_export and (
            getattr(self.settings, "labels", None) == ()
            and self.problem_type_name not in ("regression", "reranking")
        )

    @property
    def problem_type_name(self) -> str | None:
        """The `problem_type` of a classifier in transformers, or `reranking`; None without one."""
        return None

    @property
    def prediction_model(self) -> keras.Model:
        """The model that `fit` trains and that the programs run: `model`, or a model around it."""
        return self.model

    @property
    def layers_without_loss(self) -> Sequence[keras.layers.Layer]:
        """The layers on which no training loss depends; weight decay alone would shrink them."""
        return [self.model.encoder.pooler] if self.model.per_token else []

    def score_outputs(self, evaluated: PreparedSet, outputs: Arrays) -> dict[str, float]:
        """Computes {metric: value} from the model's outputs for a development set."""
        raise NotImplementedError

    def prepared_set(self, items: Any, training: bool = False) -> PreparedSet:
        """Preprocesses the items of a set of files, with the labels of the loss if `training`."""
        raise NotImplementedError

    def problem_counts(self, sets: Mapping[str, PreparedSet]) -> dict[str, int]:
        """Counts the examples with problems in the sets of a run, as results.json names them."""
        return {
            f"{name}_truncated": self.report_truncation(
                each.prepared.truncated, f"{self.items_name} ({name})"
            )
            for name, each in sets.items()
        }

    def write_predictions(
        self, path: Path, predicted: PreparedSet, outputs: Arrays, scores: Mapping[str, float]
    ) -> None:
        """Writes the prediction files of a test set, from the model's outputs for it.

        `path` is their path without an ending. `scores` are those of the development set, if it is
        another set.
        """
        raise NotImplementedError

    def training_batches(self, examples: Examples, batcher: Batcher) -> tf.data.Dataset:
        """Creates the endless dataset of the batches of `fit`."""
        return batcher.training(examples)

    # Public methods that all tasks share.

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
        **settings: Any,
    ) -> Self:
        """Creates the object from an open checkpoint, with the arguments of `from_pretrained`.

        Raises:
            InputError: the weights or the settings do not match the task.
        """
        check_dtype(dtype)
        task_settings = cls.settings_of_checkpoint(checkpoint, **settings)
        tokenizer = checkpoint.tokenizer(tokenizer, special=cls.special_tokens)
        loaded = cls(None, tokenizer, task_settings)
        loaded.checkpoint, loaded._dtype = checkpoint, dtype
        if loaded.needs_labels:
            return loaded
        loaded.create_model(checkpoint.config, dtype)
        loaded.load_weights(checkpoint)
        if loaded.untrained:
            logging.warning(
                "%s: weights that are not in the checkpoint are newly initialized: %s; train the "
                "model before you use it",
                checkpoint.path,
                ", ".join(loaded.untrained),
            )
        return loaded

    def create_model(self, config: BertConfig, dtype: str | None) -> None:
        """Creates the model of an object that has none; `load_weights` must follow."""
        with skip_encoder_weights():
            self._model = self.make_model(config, self.settings, dtype)
        self.processor = self.make_processor()

    def load_weights(self, checkpoint: Checkpoint) -> None:
        """Loads the weights of a checkpoint; those that it does not contain keep their values."""
        report = checkpoint.load_into(self.model)
        self.absent, self.checkpoint = report.new, checkpoint
        self.untrained = tuple(
            path for path in self.absent if not path.startswith(self.optional_weights)
        )
        logging.info("%s", report._replace(new=self.untrained))
        self.initial_values = {
            variable.path: np.array(keras.ops.convert_to_numpy(variable.value), np.float32)
            for variable in self.model.weights
            if variable.path in self.absent
        }

    @property
    def model(self) -> keras.Model:
        """The Keras model; raises InputError for an exported model, which has none."""
        if self.needs_labels:
            raise InputError(
                f"{self.checkpoint.path}: has no head for the task {self.task}; expected the names "
                'of its labels, such as labels=["0", "1"], or fit(), which uses those of its data'
            )
        if self._model is None:
            raise InputError(
                "an exported model has no Keras model and cannot be trained or changed; load the "
                "model directory that it was exported from"
            )
        return self._model

    def save_pretrained(self, path: str | os.PathLike, card: str = "") -> None:
        """Saves a Hugging Face model directory that `from_pretrained` and transformers can load.

        Args:
            path: the directory. An existing model directory is replaced.
            card: the model card in Markdown, saved as README.md; empty for none.

        Raises:
            InputError: the directory cannot be written, or contains other files.
        """
        save_model_directory(path, self.model, **self.saved_content(), card=card)

    def saved_content(self) -> dict[str, Any]:
        """Returns what a saved model directory contains besides the weights."""
        return {
            "vocab": self.tokenizer.vocab,
            "tokenizer_settings": self.tokenizer.settings,
            "labels": self.label_names or None,
            "problem_type": self.problem_type_name,
            "extra": {SETTINGS_KEY: self._saved_settings()},
        }

    def export(
        self,
        export_dir: str | os.PathLike,
        format: str = "saved_model",
        *,
        compute_type: str | None = None,
        int8: bool | None = None,
        engines: Sequence[str] = (),
        examples: bool = True,
    ) -> Path:
        """Exports the model for serving and returns the export directory.

        Args:
            export_dir: DIR/<version>, such as serving/mrpc/1; it must not exist.
            format: `saved_model` maps strings to answers; `onnx` maps token ids to the model's
                outputs.
            compute_type: the dtype of matrix products in a SavedModel, `float32` (the default) or
                `bfloat16`.
            int8: whether `onnx` stores weights as int8, or a SavedModel also gets an int8 file for
                onnxruntime; None for False.
            engines: the engines besides TensorFlow that can run the network of the SavedModel, from
                `onnxruntime` and `openvino`; the server uses the first by default.
            examples: whether a SavedModel contains up to three short training texts, which the
                page of the server shows as examples.

        Raises:
            InputError: some weights are untrained, an argument does not apply to the format, or
                `export_dir` exists or cannot be written.
        """
        return export_task(
            self,
            Path(export_dir),
            format,
            compute_type=compute_type,
            int8=bool(int8),
            engines=engines,
            examples=examples,
        )

    def set_long_text(self, strategy: str, window_stride: int = 0) -> None:
        """Sets what happens to single texts with more than `max_seq_length` tokens.

        The setting applies to training, prediction and exports, and is saved with the model. Only
        classifiers and embedders have it.

        Args:
            strategy: `truncate` removes tokens at the end (the default of a new model); `head_tail`
                removes them in the middle, so that a quarter of the rest is the beginning of the
                text; `windows` splits the text into overlapping windows, over whose logits or
                vectors the mean is taken.
            window_stride: number of tokens between the starts of two windows; 0 for half of a
                window.

        Raises:
            InputError: an argument is invalid, the task does not have the setting, or the object
                was loaded from an export.
        """
        if self.is_export:
            _ = self.model  # Raises an error for an export, whose settings are in its graph.
        if not hasattr(self.settings, "long_text"):
            raise InputError(
                f"set_long_text: a {type(self).__name__} has no such setting; expected a "
                "TextClassifier or a TextEmbedder"
            )
        self._replace_settings(long_text=LongText(strategy, window_stride))

    @classmethod
    def from_export(cls, info: Mapping[str, Any], signatures: Mapping[str, Signature]) -> "Task":
        """Creates the object for a SavedModel from its export.json (`info`) and its signatures."""
        loaded = cls(None, None, cls.settings_of_export(info))
        loaded.signatures = signatures
        loaded._served_inputs = {n: list(s["inputs"]) for n, s in info["signatures"].items()}
        return loaded

    @classmethod
    def array_steps(cls, loaded: Any, info: Mapping[str, Any]) -> ArraySteps | None:
        """Returns the steps of an export in NumPy; None for those of its SavedModel, `loaded`."""
        return None

    # Helpers for subclasses.

    @functools.cached_property
    def _runner(self) -> ModelRunner:
        return ModelRunner(self.model, self.tokenizer)

    @classmethod
    def _open(cls, path: str | os.PathLike, **arguments: Any) -> Self:
        """Implements `from_pretrained`; `arguments` are those of `from_checkpoint`."""
        checkpoint = open_checkpoint(path, hub_names=True)
        checkpoint.check_task(cls.task, cls.__name__)
        return cls.from_checkpoint(checkpoint, **arguments)

    def _prepared(self, columns: Columns) -> Prepared:
        """Preprocesses texts; `columns` has a list for each argument of the preprocessing."""
        return prepare(self.processor.preprocess, columns, tokenizer=self.tokenizer)

    def _answers(
        self,
        columns: Columns,
        batch_size: int,
        preprocess: Callable[..., Any] | None = None,
        signature: str = "serving_default",
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the answers for texts, {name: [B, ...]} for each chunk of B texts.

        `columns` contains, for each argument of `preprocess`, one value per text. `preprocess`
        replaces that of the processor; None to keep it. `signature` is that of an export.
        """
        check_count(batch_size)
        if self.is_export:
            yield from self._served_answers(columns, batch_size, signature)
            return
        prepared = prepare(
            preprocess or self.processor.preprocess, columns, tokenizer=self.tokenizer
        )
        outputs = self._outputs(prepared, batch_size)
        yield from self._decoded(prepared, outputs)

    def _served_answers(
        self, columns: Columns, batch_size: int, signature: str
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the answers of an export for each batch; without texts, for one empty batch."""
        expected = self._served_inputs[signature]
        names = expected if len(expected) == 1 else self.argument_names
        if len(columns) != len(expected):
            inputs = ", ".join(self.argument_names[: len(columns)])
            raise InputError(
                f"predict() got {inputs}; the exported model expects {', '.join(expected)}"
            )
        for start in range(0, max(len(columns[0]), 1), batch_size):
            batch = [as_array(column[start : start + batch_size]) for column in columns]
            try:
                yield self.signatures[signature](**dict(zip(names, batch, strict=True)))
            except tf.errors.InvalidArgumentError as error:
                message = failed_check(error.message) or error.message.partition("\n")[0]
                raise InputError(message) from None

    def _predict(self, columns: Columns, batch_size: int) -> dict[str, Any]:
        """Returns the answers for n texts, {name: [n, ...]}; byte strings become Python strings."""
        return with_strings(gathered(list(self._answers(columns, batch_size))))

    def _outputs(self, prepared: Prepared, batch_size: int) -> dict[str, np.ndarray]:
        """Runs the model over preprocessed texts, and returns {output: array}."""
        return self._runner.run(prepared.examples, batch_size, self.processor.per_token)

    def _decoded(
        self, prepared: Prepared, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Decodes `_outputs`, and yields the answers of each chunk."""
        return decoded(self.processor, prepared, outputs)

    def _evaluate(self, evaluated: PreparedSet, batch_size: int = 32) -> dict[str, float]:
        """Computes {metric: value} for a development set; MaskFiller does not use it."""
        outputs = self._outputs(evaluated.prepared, check_count(batch_size))
        return self.score_outputs(evaluated, outputs)

    def report_truncation(self, truncated: np.ndarray | None, texts: str) -> int:
        """Counts truncated texts, and logs a warning if there are any.

        `truncated` is None for an export of an earlier version. `texts` is what the texts are, such
        as "training texts".
        """
        count = 0 if truncated is None else int(np.count_nonzero(truncated))
        if count:
            limit = f"{self.limit}={getattr(self.settings, self.limit)}"
            logging.warning(
                "%d of %d %s are truncated to %s tokens", count, len(truncated), texts, limit
            )
        return count

    def _check_fit(
        self, options: Mapping[str, Any], validation_data: Any, teacher: "Task | None" = None
    ) -> tuple[FitSettings, Distillation | None]:
        """Checks the options of `fit` and its teacher, and that there is a model to train.

        Returns the settings, and how the model learns from the teacher; None without a teacher.
        """
        parameters = inspect.signature(self.fit).parameters.values()
        keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        settings = FitSettings.of(options, self.task, keywords)
        if not self.needs_labels:
            _ = self.model  # Raises an error for an exported model, which cannot be trained.
        has_data = validation_data is not None
        if settings.validation_split and has_data:
            raise InputError("validation_split: has no effect with validation_data; expected one")
        if settings.restore_best and not (settings.validation_split or has_data):
            raise InputError("restore_best: expected validation_data or validation_split, too")
        layers = self.config.num_hidden_layers
        if settings.num_frozen_layers > layers:
            raise InputError(
                f"num_frozen_layers={settings.num_frozen_layers}: expected at most {layers}, the "
                "number of layers"
            )
        if teacher is not None:
            if self.needs_labels and type(teacher) is type(self):
                self._set_labels(teacher.label_names, settings)
            check_teacher(self, teacher)
            return settings, Distillation(settings.distillation_weight, settings.temperature)
        for name in ("distillation_weight", "temperature"):
            if name in options:
                raise InputError(f"{name}: has no effect without teacher")
        return settings, None

    def _set_labels(self, labels: Sequence[str], settings: FitSettings) -> None:
        """Creates the model of an object that needs labels."""
        if settings.verbose:
            print(f"labels: {', '.join(map(repr, labels))}")
        checkpoint = self.checkpoint
        self._replace_settings(labels=tuple(labels))
        self.create_model(checkpoint.config, self._dtype)
        self.load_weights(checkpoint)

    def _replace_settings(self, **changes: Any) -> None:
        self.settings = dataclasses.replace(self.settings, **changes)
        self.processor = self.make_processor()

    def _saved_settings(self) -> dict[str, Any]:
        """Returns the settings for config.json, except the labels, which have their own keys."""
        return {k: v for k, v in dataclasses.asdict(self.settings).items() if k != "labels"}
