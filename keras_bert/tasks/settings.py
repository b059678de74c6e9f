"""Declares the settings of fine-tuning and export, without importing a backend.

Programs make their flags from these classes. The settings of question answering are declared in
question_answering/data.py.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from keras_bert.errors import InputError
from keras_bert.options import (
    ANY_MODEL,
    MAX_BATCH_SIZE,
    MAX_REPEATS,
    MAX_SEED,
    MAX_SEQ_LENGTH,
    advanced,
    check,
    option,
    same_as,
)
from keras_bert.tasks import CLASSES
from keras_bert.tasks.question_answering.data import AnswerSettings
from keras_bert.training.settings import Precision, TrainingSettings

# --- training ---


@dataclass(frozen=True)
class FineTuningSettings:
    """The settings of a fine-tuning run, apart from those of its steps and of its data.

    `length_pool` is the number of batches whose examples are sorted by length together.
    """

    GROUP: ClassVar[str] = "training"
    init_checkpoint: str = option(
        "",
        f"Model to start from: {ANY_MODEL}. If it is a run folder, --nodo_train uses that run's "
        "flags about text and answers.",
        required=True,
    )
    vocab_file: str = option(
        "", "Vocabulary file. Default: the vocabulary of the checkpoint.", group="model"
    )
    do_lower_case: bool | None = advanced(
        None, "Whether to lower-case text. Default: as stored in the checkpoint."
    )
    label_names: Sequence[str] | None = advanced(
        None,
        "Comma-separated label names of the checkpoint, in the order of its logits. Default: those "
        "in the checkpoint.",
    )
    max_seq_length: int = option(
        128, "Maximum number of tokens in an example.", min=3, max=MAX_SEQ_LENGTH, group="model"
    )
    learning_rate: float = option(5e-5, "Peak learning rate.", min=0, argument="learning_rate")
    num_train_epochs: float = option(
        3.0,
        "Number of passes over the training examples.",
        above=0,
        max=MAX_REPEATS,
        argument="epochs",
    )
    warmup_proportion: float = advanced(
        0.1,
        "Fraction of the training steps in which the learning rate increases to its peak.",
        min=0,
        below=1,
        argument="warmup_proportion",
    )
    layer_decay: float = advanced(
        1.0,
        "Ratio of the learning rate of a layer to that of the layer above it; 1: equal rates.",
        above=0,
        max=1,
        argument="layer_decay",
    )
    bias_correction: bool = advanced(
        True, "Whether Adam corrects its bias; the published BERT does not."
    )
    weight_decay: float = advanced(
        0.01, "Weight decay of the optimizer.", min=0, argument="weight_decay"
    )
    early_stopping_patience: int = option(
        0,
        "Number of epochs without a better score after which training stops; 0: train all epochs.",
        min=0,
        needs="do_eval",
    )
    length_pool: int = 50
    random_seed: int = advanced(
        12345, "Seed for new weights, data order and dropout.", min=0, max=MAX_SEED, argument="seed"
    )
    mixed_precision: str = same_as(Precision, "mixed_precision")
    optimizer_state_dtype: str = same_as(Precision, "optimizer_state_dtype")
    eval_batch_size: int = advanced(
        32, "Number of examples per batch in evaluation and prediction.", min=1, max=MAX_BATCH_SIZE
    )
    do_train: bool = option(True, "Whether to train.")
    do_eval: bool = option(
        True, "Whether to evaluate on the development set, if any, after each epoch."
    )
    do_predict: bool = option(True, "Whether to write predictions for the test set, if any.")

    @property
    def does(self) -> dict[str, bool]:
        """The arguments of `read_splits` that select the splits of a run."""
        return {name: getattr(self, name) for name in ("do_train", "do_eval", "do_predict")}


@dataclass(frozen=True)
class Distillation:
    """How a student learns from a teacher; invalid values raise InputError."""

    GROUP: ClassVar[str] = "training"
    distillation_weight: float = advanced(
        0.9,
        "Share of the teacher's outputs in the loss, up to 1; the labels have the rest.",
        above=0,
        max=1,
        needs="teacher",
        argument="distillation_weight",
    )
    temperature: float = advanced(
        1.0,
        "Divides the logits in the loss of the teacher's outputs.",
        min=0.01,
        max=50,
        needs="teacher",
        argument="temperature",
    )
    teacher: str = option(
        "",
        "Fine-tuned model of the same task, vocabulary and labels, whose outputs the model learns "
        "in addition to the labels (distillation).",
        needs="do_train",
    )

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class FitSettings:
    """Training settings of `fit`; the defaults are those of the task's program.

    | | epochs | batch_size | learning_rate | length_pool |
    | --- | --- | --- | --- | --- |
    | TextClassifier (`keras-bert classify`) | 3 | 32 | 5e-5 | 50 |
    | EntityTagger (`keras-bert ner`) | 3 | 32 | 5e-5 | 4 |
    | QuestionAnswerer (`keras-bert squad`) | 2 | 12 | 3e-5 | 4 |
    | TextEmbedder (`keras-bert embed`) | 1 | 64 | 2e-5 | 50 |
    | MaskFiller (`keras-bert adapt`) | 10 | 32 | 5e-5 | 50 |

    For all tasks, `warmup_proportion` is 0.1, `weight_decay` 0.01 and `seed` 12345.

    Attributes:
        epochs: number of passes over the examples.
        batch_size: number of examples per step.
        learning_rate: the peak learning rate, reached after warm-up; it then decays to 0.
        warmup_proportion: the fraction of the steps used for warm-up.
        weight_decay: the weight decay, not applied to LayerNorm weights and biases.
        seed: seed for newly initialized weights, the order of the examples and dropout masks.
        length_pool: number of batches whose examples are sorted by length together, so that less
            padding is needed; 1 for random batches.
        layer_decay: the ratio of the learning rate of a layer to that of the layer above it.
        num_frozen_layers: the number of lowest layers that are not trained, nor are the embeddings;
            0 to train all of them.
        gradient_accumulation_steps: the number of micro-batches in which a batch is computed, to
            save memory; the gradients are those of the whole batch. It must divide `batch_size`.
        mixed_precision: the data type of the computation in this and later training and prediction,
            `float32`, `bfloat16` or `float16`; None for that of the model.
        validation_split: the fraction of the examples, chosen at random, that is evaluated after
            each epoch and not trained on.
        restore_best: whether the model ends with the weights of the epoch with the best evaluation,
            as in the programs, instead of the last one.
        verbose: as in `keras.Model.fit`; 0 prints nothing.
        jit_compile: whether to compile with XLA, once per batch length; None to compile only with
            the JAX backend.
        distillation_weight: with a teacher, the share of its outputs in the loss, up to 1.
        temperature: with a teacher, divides the logits of both models.

    Raises:
        InputError: a value is out of range.
    """

    epochs: int = same_as(FineTuningSettings, "num_train_epochs", default=3, min=1, above=None)
    batch_size: int = same_as(TrainingSettings, "train_batch_size")
    learning_rate: float = same_as(FineTuningSettings, "learning_rate", min=None, above=0)
    warmup_proportion: float = same_as(FineTuningSettings, "warmup_proportion")
    weight_decay: float = same_as(FineTuningSettings, "weight_decay")
    seed: int = same_as(FineTuningSettings, "random_seed")
    length_pool: int = option(50, "Batches sorted by length together.", min=1)
    layer_decay: float = same_as(FineTuningSettings, "layer_decay")
    num_frozen_layers: int = option(0, "Lowest layers that are not trained.", min=0)
    gradient_accumulation_steps: int = same_as(TrainingSettings, "gradient_accumulation_steps")
    mixed_precision: str | None = same_as(Precision, "mixed_precision", default=None)
    validation_split: float = option(0.0, "Fraction of examples to evaluate.", min=0, below=1)
    restore_best: bool = option(False, "Whether to end with the weights of the best epoch.")
    verbose: str | int = "auto"
    jit_compile: bool | None = None
    distillation_weight: float = same_as(Distillation, "distillation_weight")
    temperature: float = same_as(Distillation, "temperature")

    def __post_init__(self):
        check(self)
        if self.batch_size % self.gradient_accumulation_steps:
            raise InputError(
                f"gradient_accumulation_steps={self.gradient_accumulation_steps!r}: expected a "
                f"divisor of batch_size={self.batch_size}"
            )

    @classmethod
    def of(
        cls, options: Mapping[str, Any], task: str, arguments: Sequence[str] = ()
    ) -> "FitSettings":
        """Creates the settings of a task from keyword arguments and the defaults of the task.

        `arguments` are the other keyword arguments of `fit`, for the error message.

        Raises:
            InputError: an argument is unknown or out of range.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            expected = [*names, *arguments]
            nearest = difflib.get_close_matches(unknown[0], expected, 1)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise InputError(
                f"fit() got unknown arguments {', '.join(unknown)}; {hint}expected any of "
                f"{', '.join(expected)}"
            )
        return replace(DEFAULTS.get(task, cls()), **options)


# {task: its defaults, if they differ}. A large pool reduces the scores of NER and SQuAD by several
# points, because a batch of examples of similar length contains few kinds of them: see
# benchmarks/README.md.
DEFAULTS = {
    "embedding": FitSettings(epochs=1, batch_size=64, learning_rate=2e-5),
    # Each epoch masks other tokens, so a small corpus can be read several times.
    "fill_mask": FitSettings(epochs=10),
    "ner": FitSettings(length_pool=4),
    # The hyperparameters of Devlin et al. (2019) for SQuAD v1.1.
    "question_answering": FitSettings(epochs=2, batch_size=12, learning_rate=3e-5, length_pool=4),
}


# --- data ---


def _columns(
    entries: Sequence[str], roles: Sequence[str], repeatable: str = ""
) -> dict[str, list[str]]:
    """Returns {role: names} of the entries of --columns, ROLE=NAME; only one role is repeatable."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        role, _, name = entry.partition("=")
        if role not in roles or not name or (role in names and role != repeatable):
            raise InputError(
                f"--columns={','.join(entries)}: expected ROLE=NAME, separated by commas, with the "
                f"roles {', '.join(roles)}, each at most once"
                + f", but {repeatable} for each text"
                * bool(repeatable)
            )
        names.setdefault(role, []).append(name)
    return names


@dataclass(frozen=True)
class ClassificationSettings:
    """The settings for the data of a classifier.

    The settings from `train_file` to `problem_type` apply only to the task `custom`.
    """

    GROUP: ClassVar[str] = "data"
    task_name: str = option(
        "",
        "GLUE task (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, ..., AX). Default: custom, for your own "
        "files, which the flags from --train_file to --problem_type describe.",
    )
    data_dir: str = option("", "Folder of GLUE or of the task; with --tfds, TFDS's data_dir.")
    tfds: bool = option(
        False, "Read the task from TensorFlow Datasets, which must have prepared it."
    )
    train_file: str = option(
        "", "File of training examples (.tsv, .csv, .jsonl, .json, .parquet or .arrow)."
    )
    eval_file: str = option("", "File of development examples, to evaluate on.")
    predict_file: str = option("", "File of examples to predict. Default: --eval_file.")
    columns: Sequence[str] = option(
        (),
        "Names of the columns that differ from the default, such as text=title,label=topic. Pairs "
        "need text_pair=NAME; for reranking without labels, it is repeated: the columns of the "
        "positive and of the negatives of the query.",
    )
    problem_type: str = option(
        "single_label",
        "The kind of label: one class, any number of classes, a number, or for reranking "
        "the relevance of a passage to a query, from 0 to 1.",
        choices=("single_label", "multi_label", "regression", "reranking"),
    )
    class_weights: str = option(
        "",
        "Loss weights of the classes: balanced, or comma-separated numbers. Default: equal.",
        group="training",
    )
    long_text: str = option(
        "truncate",
        "For single texts with more than --max_seq_length tokens: remove the end or the middle, or "
        "split the text into overlapping windows, with the mean of their logits or vectors.",
        choices=("truncate", "head_tail", "windows"),
        group="model",
    )

    @property
    def column_names(self) -> tuple[list[str], str]:
        """The columns of the texts of an example, and that of its label."""
        repeatable = "text_pair" if self.problem_type == "reranking" else ""
        names = _columns(self.columns, ("text", "text_pair", "label"), repeatable)
        (label,) = names.get("label", ["label"])
        return [*names.get("text", ["text"]), *names.get("text_pair", [])], label


@dataclass(frozen=True)
class NerSettings:
    """The files of a run, and the settings for reading and labeling words."""

    GROUP: ClassVar[str] = "data"
    train_file: str = option(
        "",
        "File to train on: a column file, or texts with entities or words with tags (.jsonl, "
        ".json, .parquet or .arrow).",
    )
    eval_file: str = option("", "File to evaluate on after each epoch.")
    predict_file: str = option("", "File to predict. Default: --eval_file.")
    tfds: bool = option(
        False, "Read --task_name from TensorFlow Datasets, which must have prepared it."
    )
    task_name: str = option(
        "", "With --tfds: the dataset, such as conll2003, conll2002/es or wikiann/de."
    )
    data_dir: str = option(
        "",
        "Folder of train.conll, dev.conll and test.conll, or of .jsonl files; with --tfds, TFDS's "
        "data_dir.",
    )
    columns: Sequence[str] = option(
        (),
        "Indices of the columns with the words and tags, from 0; -1 is the last. Default: "
        "token=0,tag=-1.",
    )
    tag_scheme: str = advanced(
        "",
        "Scheme of the tags. Default: detected for each file.",
        choices=("", "iob1", "iob2", "bioes", "bilou", "bmes", "bmewo", "io"),
    )
    document_context: bool = option(
        False, "Add the neighboring sentences of the document to the input of each sentence."
    )

    @property
    def column_indices(self) -> dict[str, int]:
        """The indices of the columns "token" and "tag"."""
        names = _columns(self.columns, ("token", "tag"))
        try:
            return {"token": 0, "tag": -1} | {role: int(name) for role, (name,) in names.items()}
        except ValueError:
            raise InputError(
                f"--columns={','.join(self.columns)}: expected whole numbers, such as "
                "token=0,tag=-1"
            ) from None


@dataclass(frozen=True)
class MiningSettings:
    """How hard negatives are mined; invalid values raise InputError."""

    GROUP: ClassVar[str] = "data"
    num_negatives: int = option(3, "Number of negatives of a pair.", min=1, max=1000)
    skip_top: int = option(
        0,
        "Number of the nearest texts that are skipped, because they may be positives that are not "
        "labeled.",
        min=0,
        max=100_000,
    )
    margin: float | None = option(
        None,
        "By how much the cosine of a negative must be lower than that of the positives. Default: "
        "it may be higher.",
        min=-2,
        max=2,
    )
    output_format: str = option(
        "triplet",
        "`triplet`: a row for each negative; `n-tuple`: a row with all negatives of a pair.",
        choices=("triplet", "n-tuple"),
    )

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class EmbeddingSettings:
    """The settings for the data and the loss of a run."""

    GROUP: ClassVar[str] = "data"
    train_file: str = option(
        "",
        "File of training examples (.tsv, .csv, .jsonl, .json, .parquet or .arrow), or a BEIR "
        "directory, whose qrels/train.tsv is used.",
    )
    eval_file: str = option(
        "",
        "File of development examples of any kind, to evaluate on, as its columns show; or a BEIR "
        "directory, whose qrels/test.tsv is used, or another file in qrels.",
    )
    mine_negatives: int = same_as(
        MiningSettings,
        "num_negatives",
        default=0,
        min=0,
        help="Mine hard negatives instead of training: write OUTPUT_DIR/triplets.jsonl, with up to "
        "this number of texts near to the anchor for each pair of --train_file.",
    )
    skip_top: int = same_as(MiningSettings, "skip_top", needs="mine_negatives")
    margin: float | None = same_as(MiningSettings, "margin", needs="mine_negatives")
    loss: str = option(
        "mnrl",
        "mnrl, for pairs and triplets: each positive must rank above all other positives and "
        "negatives of its batch. cosent, for scored pairs: cosines must have the order of the "
        "scores. cosine, for scored pairs: cosines must equal the scores.",
        choices=("mnrl", "cosent", "cosine"),
        group="training",
    )
    scale: float = advanced(
        20.0, "Factor of the cosines in mnrl and cosent; 1 / temperature.", min=0
    )
    pooling: str | None = option(
        None,
        "The vector of a text: the mean over its tokens, or [CLS]. Default: that of the "
        "checkpoint, or else mean.",
        choices=("mean", "cls"),
        group="model",
    )
    matryoshka_sizes: Sequence[str] = advanced(
        (), "Comma-separated sizes; the loss is the mean over vectors truncated to these sizes."
    )
    columns: Sequence[str] = option(
        (),
        "Names of the columns that differ from the default, such as anchor=question,"
        "positive=answer. Pairs have the columns anchor and positive, triplets also "
        "negative, and scored pairs text_a, text_b and score.",
    )
    score_range: Sequence[str] = option(
        ("-1", "1"),
        "Lowest and highest score. For training, scores are divided by the larger of their "
        "absolute values.",
    )
    long_text: str = same_as(ClassificationSettings, "long_text")

    @property
    def column_names(self) -> dict[str, str]:
        """{role: name} of the columns; only triplets have the role negative."""
        roles = ("anchor", "positive", "negative", "text_a", "text_b", "score")
        defaults = {role: role for role in roles if role != "negative"}
        names = _columns(self.columns, roles)
        return defaults | {role: name for role, (name,) in names.items()}


# --- export ---


@dataclass(frozen=True)
class ExportOptions:
    """The model, task and format of an export, and the settings of its task.

    A setting of the task that is None gets the value that is stored with the model or its run, or
    else the task's default.
    """

    GROUP: ClassVar[str] = "output"
    model_dir: str = option(
        "",
        f"Model to export: {ANY_MODEL}.",
        required=True,
    )
    export_dir: str = option(
        "",
        "Version folder to write, DIR/<version>, such as serving/mrpc/1; must not exist.",
        required=True,
    )
    task: str = option(
        "",
        "Task to export the model for. Default: the task of the model's head.",
        choices=("", *CLASSES),
    )
    format: str = option("saved_model", "Format of the export.", choices=("saved_model", "onnx"))
    int8: bool | None = option(
        None,
        "Quantize the weights to int8 (dynamic quantization): those of the file for onnx; with "
        "--engines=onnxruntime, those of a second file beside the SavedModel.",
    )
    compute_type: str | None = option(
        None,
        "saved_model: data type of the matrix products. Default: float32.",
        choices=("float32", "bfloat16"),
    )
    engines: Sequence[str] | None = option(
        None,
        "saved_model: engines besides TensorFlow that can run the network, from onnxruntime and "
        "openvino. Their files are written beside the SavedModel; the server uses the first one.",
    )
    examples: bool | None = option(
        None,
        "saved_model: keep up to three short training texts of the run, which the page of the "
        "server shows as examples. Default: true.",
    )
    max_seq_length: int | None = option(
        None,
        "Maximum number of tokens in a text, pair or window. Default: as in the run, if there is "
        "one.",
    )
    pair: bool | None = option(
        None,
        "classification: whether the input is a pair of texts, `text` and `text_pair`. Default: "
        "as in the run.",
    )
    top_k: int | None = option(
        None, "fill_mask: number of tokens returned for each [MASK]. Default: 5."
    )
    max_query_length: int | None = same_as(AnswerSettings, "max_query_length", default=None)
    doc_stride: int | None = same_as(AnswerSettings, "doc_stride", default=None)
    n_best_size: int | None = same_as(AnswerSettings, "n_best_size", default=None)
    max_answer_length: int | None = same_as(AnswerSettings, "max_answer_length", default=None)
    version_2_with_negative: bool | None = same_as(
        AnswerSettings, "version_2_with_negative", default=None
    )
    null_score_diff_threshold: float | None = option(
        None,
        "A question gets the empty answer if its null odds exceed this threshold. Default: as in "
        "the run.",
    )
