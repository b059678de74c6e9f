"""A trained model in; what serves it out: a SavedModel from text to answers, ONNX or LiteRT.

model directory, and the run it came from -> task and settings -> a model with its head -> the
files of one version

What a run was trained with (lengths, pairs, threshold) is taken from its run.json and
results.json, beside model/; a setting given here goes before it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.model_directory import VOCAB, write_vocab
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.files import appearing, read_json, write_json
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.serving.classification import ServedClassifier
from keras_bert.serving.embedding import ServedEmbedding
from keras_bert.serving.entities import ServedTagger, TaggerSettings
from keras_bert.serving.fill_mask import ServedFillMask
from keras_bert.serving.model_card import model_card
from keras_bert.serving.network import Network
from keras_bert.serving.question_answering import AnswerSettings, ServedQuestionAnswering
from keras_bert.serving.saved_model import CARD, INFO, check_version, write_saved_model
from keras_bert.tasks.classification import glue
from keras_bert.tasks.ner.data import check_labels
from keras_bert.tokenization import BertTokenizer

# What is served of which heads, by transformers' names for them.
_TASK_OF = {
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "question_answering",
    "BertForTokenClassification": "ner",
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertModel": "embedding",
}
TASKS = tuple(dict.fromkeys(_TASK_OF.values()))
FORMATS = {"saved_model": "saved_model.pb", "onnx": "model.onnx", "litert": "model.tflite"}

# The longest text where no run says how it was trained; question answering has its own.
_MAX_SEQ_LENGTH = 128

# What warms a server up, and shows a reader of the model card what a request looks like.
_TEXT = "The Norman dynasty had a major impact on medieval Europe."
_QUESTION = "Who had an impact on Europe?"


@dataclass(frozen=True)
class ExportSettings:
    """What is exported, and how. None takes what the run says, else the default.

    Attributes:
        model_dir: a run's model/, its folder, or whatever `open_checkpoint` opens.
        export_dir: DIR/<version>, for TensorFlow Serving; must not exist.
        task: one of TASKS; empty for what the model's heads are for.
        format: `saved_model`, `onnx` or `litert`.
        int8: dynamic int8 weights (`onnx` and `litert`).
        compute_type: of a SavedModel's products, `float32` or `bfloat16`.
        max_seq_length: pieces of a text, pair or window.
        pair: whether a classifier takes two texts.
        normalize: whether embeddings are brought to length 1.
        top_k: pieces that fill a mask.
        doc_stride: as run_squad's flag, like the rest.
        max_query_length: pieces of a question.
        n_best_size: candidates a question.
        max_answer_length: pieces of an answer.
        version_2_with_negative: whether questions may have no answer.
        null_score_diff_threshold: null odds above it give the empty answer.
    """

    model_dir: str
    export_dir: str
    task: str = ""
    format: str = "saved_model"
    int8: bool = False
    compute_type: str = "float32"
    max_seq_length: int | None = None
    pair: bool | None = None
    normalize: bool = False
    top_k: int = 5
    doc_stride: int | None = None
    max_query_length: int | None = None
    n_best_size: int | None = None
    max_answer_length: int | None = None
    version_2_with_negative: bool | None = None
    null_score_diff_threshold: float | None = None


@dataclass(frozen=True)
class _Exported:
    """A model with its head, and how its task is served.

    Attributes:
        model: filled with the checkpoint's weights.
        serve: network -> the task's signatures.
        info: the task's part of export.json.
        warm_up: the texts of a request.
    """

    model: keras.Model
    serve: Callable[[Network], tf.Module]
    info: Mapping[str, object]
    warm_up: Mapping[str, str]


@dataclass(frozen=True)
class _Run:
    """What the run that a model came from says of itself; empty without one."""

    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    @classmethod
    def beside(cls, model_dir: Path) -> "_Run":
        """Reads run.json and results.json of the folder that holds model/."""

        def read(name: str) -> Mapping[str, Any]:
            path = model_dir.absolute().parent / name
            return read_json(path) if path.is_file() else {}

        settings = read("run.json").get("settings")
        return cls(settings if isinstance(settings, dict) else {}, read("results.json"))

    def take(self, settings: ExportSettings, name: str, default: Any) -> Any:
        """Returns a setting as it is given, else as the run had it, else the default."""
        for value in (getattr(settings, name), self.settings.get(name)):
            if value is not None:
                return value
        return default


def export(settings: ExportSettings) -> Path:
    """Exports a model.

    Args:
        settings: what and how.

    Returns:
        The folder of the version.

    Raises:
        InputError: a model or a setting that cannot be served, or a place that cannot be written.
    """
    export_dir = Path(settings.export_dir)
    check_version(export_dir)
    if settings.int8 and settings.format == "saved_model":
        raise InputError("--int8: a SavedModel has none; expected --format=onnx or litert")
    checkpoint = open_checkpoint(settings.model_dir)
    if checkpoint.vocab is None:
        raise InputError(f"{checkpoint.path}: has no vocabulary; expected a vocab.txt in it")
    run = _Run.beside(checkpoint.path)
    task = _task(settings, checkpoint)
    exported = _EXPORTERS[task](settings, checkpoint, run)
    info = {
        "task": task,
        "model": str(checkpoint.path),
        "format": settings.format,
        "compute_type": "int8" if settings.int8 else settings.compute_type,
        "do_lower_case": checkpoint.do_lower_case,
        **exported.info,
    }

    def card(info: Mapping[str, object]) -> str:
        return model_card(info, checkpoint.config, run.settings, run.results)

    if settings.format == "saved_model":
        served = exported.serve(Network(exported.model, settings.compute_type))
        write_saved_model(served, export_dir, info, card, exported.warm_up)
    else:
        _write_other(settings, export_dir, exported.model, checkpoint, info, card(info))
    logging.info("%s: %s of %s", export_dir, task, checkpoint.path)
    return export_dir


def export_run(output_dir: Path) -> list[Path]:
    """Exports what a run learnt, each of several seeds', to export/1 beside its model/.

    Args:
        output_dir: the run's folder.

    Returns:
        The folders of the versions; those that were there already are left as they are.

    Raises:
        InputError: the run trained nothing, or as `export`.
    """
    models = sorted(output_dir.glob("seed-*/model")) or [output_dir / "model"]
    if not models[0].is_dir():
        raise InputError(f"{output_dir}: holds no model/; --export needs a run that trains one")
    folders = [model.parent / "export" / "1" for model in models]
    for model, folder in zip(models, folders, strict=True):
        if not folder.exists():
            export(ExportSettings(str(model), str(folder)))
    return folders


def _task(settings: ExportSettings, checkpoint: Checkpoint) -> str:
    """Returns the task: the one that is asked for, else the one that the heads are for."""
    if settings.task:
        return settings.task
    if checkpoint.architecture not in _TASK_OF:
        raise InputError(
            f"{checkpoint.path}: names no heads that are known ({checkpoint.architecture}); "
            f"expected --task={'|'.join(TASKS)}"
        )
    return _TASK_OF[checkpoint.architecture]


def _filled(checkpoint: Checkpoint, model: keras.Model, unused: tuple[str, ...]) -> keras.Model:
    """Fills a model; weights that the checkpoint lacks are an error, unless nothing uses them."""
    new = [path for path in checkpoint.load_into(model).new if not path.startswith(unused)]
    if new:
        raise InputError(
            f"{checkpoint.path}: lacks weights that the task needs, {', '.join(new)}; expected a "
            "model that was trained for it"
        )
    return model


def _length(settings: ExportSettings, checkpoint: Checkpoint, run: _Run, default: int) -> int:
    """Returns the pieces of a text at most."""
    most = checkpoint.config.max_position_embeddings
    length = run.take(settings, "max_seq_length", min(default, most))
    if not 5 <= length <= most:
        raise InputError(
            f"--max_seq_length={length}: expected from 5 to the model's {most} positions"
        )
    return length


def _classification(settings: ExportSettings, checkpoint: Checkpoint, run: _Run) -> _Exported:
    labels = checkpoint.labels or []
    problem_type = checkpoint.problem_type
    if problem_type is None:
        problem_type = "single_label_classification" if len(labels) > 1 else "regression"
    if problem_type == "regression":
        labels = []
    pair = settings.pair if settings.pair is not None else _is_pair(run.settings)
    length = _length(settings, checkpoint, run, _MAX_SEQ_LENGTH)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return _Exported(
        model=_filled(checkpoint, BertClassifier(checkpoint.config, len(labels) or 1), ()),
        serve=lambda network: ServedClassifier(
            network, tokenizer, labels, problem_type, length, pair
        ),
        info={
            "problem_type": problem_type,
            "labels": labels,
            "pair": pair,
            "max_seq_length": length,
        },
        warm_up={"text": _TEXT} | ({"text_pair": _QUESTION} if pair else {}),
    )


def _is_pair(run: Mapping[str, Any]) -> bool:
    """Tells whether a run's classifier was trained on pairs of texts."""
    for task in glue.TASKS:
        if task.name == run.get("task_name"):
            return len(task.text_columns) == 2
    return bool(run.get("text_pair_column"))


def _question_answering(settings: ExportSettings, checkpoint: Checkpoint, run: _Run) -> _Exported:
    default = AnswerSettings()
    most = checkpoint.config.max_position_embeddings
    version_2 = run.take(settings, "version_2_with_negative", default.version_2)
    threshold = run.take(settings, "null_score_diff_threshold", None)
    if threshold is None:  # The one that the run found best on its development set.
        threshold = run.results.get("best_f1_thresh", 0.0) if version_2 else 0.0
    names = ("max_query_length", "doc_stride", "n_best_size", "max_answer_length")
    answers = AnswerSettings(
        max_seq_length=run.take(settings, "max_seq_length", min(default.max_seq_length, most)),
        version_2=version_2,
        null_score_diff_threshold=threshold,
        **{name: run.take(settings, name, getattr(default, name)) for name in names},
    )
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return _Exported(
        model=_filled(checkpoint, BertSpanLabeler(checkpoint.config), ("encoder/pooler",)),
        serve=lambda network: ServedQuestionAnswering(network, tokenizer, answers),
        info=asdict(answers),
        warm_up={"question": _QUESTION, "context": _TEXT},
    )


def _ner(settings: ExportSettings, checkpoint: Checkpoint, run: _Run) -> _Exported:
    labels = checkpoint.labels
    if labels is None:
        raise InputError(f"{checkpoint.path}: names no labels; expected a tagger")
    check_labels(labels, checkpoint.path)
    length = _length(settings, checkpoint, run, _MAX_SEQ_LENGTH)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    model = BertTokenClassifier(checkpoint.config, len(labels))
    return _Exported(
        model=_filled(checkpoint, model, ("encoder/pooler",)),
        serve=lambda network: ServedTagger(network, tokenizer, labels, TaggerSettings(length)),
        info={"labels": labels, "max_seq_length": length},
        warm_up={"text": _TEXT},
    )


def _fill_mask(settings: ExportSettings, checkpoint: Checkpoint, run: _Run) -> _Exported:
    length = _length(settings, checkpoint, run, _MAX_SEQ_LENGTH)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case, keep_special_tokens=True)
    if not 1 <= settings.top_k <= len(checkpoint.vocab):
        raise InputError(
            f"--top_k={settings.top_k}: expected from 1 to the vocabulary's {len(checkpoint.vocab)}"
        )
    unused = ("encoder/pooler", "next_sentence")
    return _Exported(
        model=_filled(checkpoint, BertPretrainer(checkpoint.config), unused),
        serve=lambda network: ServedFillMask(network, tokenizer, length, settings.top_k),
        info={"max_seq_length": length, "top_k": settings.top_k},
        warm_up={"text": _TEXT.replace("major", "[MASK]")},
    )


def _embedding(settings: ExportSettings, checkpoint: Checkpoint, run: _Run) -> _Exported:
    length = _length(settings, checkpoint, run, _MAX_SEQ_LENGTH)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return _Exported(
        model=_filled(checkpoint, BertEncoder(checkpoint.config), ()),
        serve=lambda network: ServedEmbedding(network, tokenizer, length, settings.normalize),
        info={"max_seq_length": length, "normalize": settings.normalize},
        warm_up={"text": _TEXT},
    )


_EXPORTERS = {
    "classification": _classification,
    "question_answering": _question_answering,
    "ner": _ner,
    "fill_mask": _fill_mask,
    "embedding": _embedding,
}


def _write_other(
    settings: ExportSettings,
    export_dir: Path,
    model: keras.Model,
    checkpoint: Checkpoint,
    info: Mapping[str, object],
    card: str,
) -> None:
    """Writes a folder with a file of another format, the vocabulary and what a client must know."""
    # Imported here: each needs packages of its own, which a user of the other lacks.
    if settings.format == "onnx":
        from keras_bert.serving.onnx_format import write_onnx as write
    else:
        from keras_bert.serving.litert_format import write_litert as write
    with appearing(export_dir) as folder:
        folder.mkdir()
        write(model, folder / FORMATS[settings.format], int8=settings.int8)
        write_vocab(folder / VOCAB, checkpoint.vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card, encoding="utf-8")
