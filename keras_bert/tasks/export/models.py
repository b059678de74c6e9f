"""A checkpoint and a task -> the model with its head, and how the task is served.

Of a setting that is not given, what the model's run says is taken, then what sentence-transformers'
files say, then the default.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.weights import weights_of
from keras_bert.common.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.serving.classification import ServedClassifier
from keras_bert.serving.embedding import ServedEmbedding
from keras_bert.serving.fill_mask import ServedFillMask
from keras_bert.serving.network import Network
from keras_bert.serving.question_answering import AnswerSettings, ServedQuestionAnswering
from keras_bert.tasks.export.origin import SentenceTransformer, is_of_pairs
from keras_bert.tasks.export.settings import SHORTEST, ExportSettings
from keras_bert.tasks.fine_tuning.earlier_run import EarlierRun
from keras_bert.tasks.ner.data import check_labels
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.tasks.ner.served import ServedTagger
from keras_bert.text.tokenizer import BertTokenizer

# The longest text where nothing says how the model was trained; question answering has its own.
_MAX_SEQ_LENGTH = 128
_TOP_K = 5
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")

# What warms a server up, and shows a reader of the model card what a request looks like.
_TEXT = "The Norman dynasty had a major impact on medieval Europe."
_QUESTION = "Who had an impact on Europe?"


@dataclass(frozen=True)
class Exported:
    """A model with its head, and how its task is served.

    Attributes:
        model: filled with the checkpoint's weights.
        serve: network -> the task's signatures.
        described: what export.json says of the task, whatever the format.
        texts: what it says of how texts are read and answered.
        request: the texts of a request.
        left_out: outputs of the model whose weights the checkpoint lacks.
    """

    model: keras.Model
    serve: Callable[[Network], tf.Module]
    described: Mapping[str, object]
    texts: Mapping[str, object]
    request: Mapping[str, str]
    left_out: tuple[str, ...] = ()


def make_exported(
    task: str, settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun
) -> Exported:
    """Makes what is served.

    Args:
        task: one of `settings.TASKS`.
        settings: what is given.
        checkpoint: the model's, with a vocabulary.
        run: the run that it came from.

    Returns:
        The model, and how it is served.

    Raises:
        InputError: a checkpoint or a setting that the task cannot be served with.
    """
    return _MAKERS[task](settings, checkpoint, run)


def _classification(settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun) -> Exported:
    labels = checkpoint.labels
    if labels is None:  # transformers does not write the names that it gives to two labels.
        with checkpoint.open_weights() as stored:
            labels = [f"LABEL_{index}" for index in range(stored.num_labels or 0)]
    problem_type = checkpoint.problem_type
    if problem_type is None:
        problem_type = _PROBLEM_TYPES[0] if len(labels) > 1 else "regression"
    if problem_type not in _PROBLEM_TYPES:
        raise InputError(
            f"{checkpoint.path}: problem_type is {problem_type!r}; expected one of "
            f"{', '.join(_PROBLEM_TYPES)}"
        )
    if problem_type == "regression":
        labels = []
    pair = is_of_pairs(run) if settings.pair is None else settings.pair
    if pair:
        checkpoint.check_segments()
    length = _length(settings, checkpoint, run)
    model, _ = _filled(checkpoint, BertClassifier(checkpoint.config, len(labels) or 1))
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return Exported(
        model=model,
        serve=lambda network: ServedClassifier(
            network, tokenizer, labels, problem_type, length, pair
        ),
        described={"problem_type": problem_type, "labels": labels, "pair": pair},
        texts={"max_seq_length": length},
        request={"text": _TEXT} | ({"text_pair": _QUESTION} if pair else {}),
    )


def _question_answering(
    settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun
) -> Exported:
    checkpoint.check_segments()
    answers = _answers(settings, checkpoint, run)
    model, _ = _filled(checkpoint, BertSpanLabeler(checkpoint.config), ("encoder/pooler",))
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return Exported(
        model=model,
        serve=lambda network: ServedQuestionAnswering(network, tokenizer, answers),
        described={},
        texts=asdict(answers),
        request={"question": _QUESTION, "context": _TEXT},
    )


def _answers(settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun) -> AnswerSettings:
    """Returns how contexts are read and answered; where no texts are read, the defaults."""
    default = AnswerSettings()
    if settings.format != "saved_model":
        return default
    most = checkpoint.config.max_position_embeddings

    def take(name: str, kind: type, default: Any) -> Any:
        given = getattr(settings, name)
        return run.setting(name, kind, default) if given is None else given

    version_2 = take("version_2_with_negative", bool, default.version_2)
    threshold = settings.null_score_diff_threshold
    if threshold is not None and not version_2:
        raise InputError(
            f"--null_score_diff_threshold={threshold} does nothing without "
            "--version_2_with_negative"
        )
    if threshold is None:
        threshold = run.threshold() if version_2 else default.null_score_diff_threshold
    names = ("max_query_length", "doc_stride", "n_best_size", "max_answer_length")
    return AnswerSettings(
        max_seq_length=take("max_seq_length", int, min(default.max_seq_length, most)),
        version_2=version_2,
        null_score_diff_threshold=threshold,
        **{name: take(name, int, getattr(default, name)) for name in names},
    )


def _ner(settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun) -> Exported:
    labels = checkpoint.labels
    if labels is None:
        raise InputError(f"{checkpoint.path}: names no labels; expected a tagger")
    check_labels(labels, checkpoint.path)
    length = _length(settings, checkpoint, run)
    model = BertTokenClassifier(checkpoint.config, len(labels))
    model, _ = _filled(checkpoint, model, ("encoder/pooler",))
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    processor = TaggingProcessor(tokenizer, TaggerSettings(tuple(labels), length))
    return Exported(
        model=model,
        serve=lambda network: ServedTagger(network, processor),
        described={"labels": labels},
        texts={"max_seq_length": length},
        request={"text": _TEXT},
    )


def _fill_mask(settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun) -> Exported:
    length = _length(settings, checkpoint, run)
    top_k = _TOP_K if settings.top_k is None else settings.top_k
    most = len(checkpoint.vocab)
    if not 1 <= top_k <= most:
        raise InputError(f"--top_k={top_k}: expected from 1 to the vocabulary's {most}")
    model = BertPretrainer(checkpoint.config)
    model, lacks_next_sentence = _filled(checkpoint, model, ("encoder/pooler", "next_sentence"))
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case, keep_special_tokens=True)
    return Exported(
        model=model,
        serve=lambda network: ServedFillMask(network, tokenizer, length, top_k),
        described={},
        texts={"max_seq_length": length, "top_k": top_k},
        request={"text": _TEXT.replace("major", "[MASK]")},
        left_out=("next_sentence_logits",) if lacks_next_sentence else (),
    )


def _embedding(settings: ExportSettings, checkpoint: Checkpoint, run: EarlierRun) -> Exported:
    theirs = SentenceTransformer.of(checkpoint.path)
    length = _length(settings, checkpoint, run, theirs.max_seq_length or _MAX_SEQ_LENGTH)
    normalize = theirs.normalize if settings.normalize is None else settings.normalize
    model, lacks_pooler = _filled(checkpoint, BertEncoder(checkpoint.config), ("encoder/pooler",))
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    return Exported(
        model=model,
        serve=lambda network: ServedEmbedding(
            network, tokenizer, length, normalize, pooled=not lacks_pooler
        ),
        described={},
        texts={"max_seq_length": length, "normalize": normalize, "pooling": theirs.pooling},
        request={"text": _TEXT},
        left_out=("pooled_output",) if lacks_pooler else (),
    )


_MAKERS = {
    "classification": _classification,
    "question_answering": _question_answering,
    "ner": _ner,
    "fill_mask": _fill_mask,
    "embedding": _embedding,
}


def _filled(
    checkpoint: Checkpoint, model: keras.Model, optional: tuple[str, ...] = ()
) -> tuple[keras.Model, bool]:
    """Fills a model, and tells whether weights are missing that the task can do without."""
    new = checkpoint.load_into(model).new
    missing = [path for path in new if not path.startswith(optional)]
    if missing:
        raise InputError(
            f"{checkpoint.path}: lacks weights that the task needs, {', '.join(missing)}; expected "
            "a model that was trained for it"
        )
    broken = [path for path, value in weights_of(model).items() if not np.isfinite(value).all()]
    if broken:
        raise InputError(f"{checkpoint.path}: {', '.join(broken)[:200]} is not finite")
    return model, bool(new)


def _length(
    settings: ExportSettings,
    checkpoint: Checkpoint,
    run: EarlierRun,
    default: int = _MAX_SEQ_LENGTH,
) -> int:
    """Returns the pieces of a text at most; where no texts are read, the model's positions."""
    most = checkpoint.config.max_position_embeddings
    if settings.format != "saved_model":
        return most
    length = settings.max_seq_length
    if length is None:
        # 0: an older run of run_pretraining.py, which took any records.
        length = run.setting("max_seq_length", int, 0) or min(default, most)
    if not SHORTEST <= length <= most:
        raise InputError(
            f"--max_seq_length={length}: expected from {SHORTEST} to the model's {most} positions"
        )
    return length
