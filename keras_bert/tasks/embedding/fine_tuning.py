"""Trains text embeddings on pairs, triplets or scored pairs, and writes metrics and the model."""

from dataclasses import dataclass, replace

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.models.pooled_encoder import POOLINGS
from keras_bert.tasks.embedding.data import (
    EmbeddingSettings,
    read_evaluation_rows,
    read_training_rows,
)
from keras_bert.tasks.embedding.losses import IN_BATCH_LOSSES, EmbeddingLoss
from keras_bert.tasks.embedding.objective import embedding_objective
from keras_bert.tasks.embedding.processor import EmbedderSettings, EmbeddingProcessor
from keras_bert.tasks.embedding.rows import TextRows, check_evaluation_rows, check_training_rows
from keras_bert.tasks.embedding.saved_settings import make_encoder, saved_settings
from keras_bert.tasks.embedding.scoring import best_metric, score_embeddings
from keras_bert.tasks.embedding.text_embedder import TextEmbedder
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.run import fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.tasks.loading import Source
from keras_bert.tasks.long_text import pooled_rows
from keras_bert.tasks.prepared import Prepared, prepare
from keras_bert.tasks.truncation import report_splits
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.backend import BACKEND


@dataclass(frozen=True)
class _Splits:
    """The training and the development examples of a run; each may be None."""

    train: TextRows | None
    dev: TextRows | None


def fine_tune_embedder(embedding: EmbeddingSettings, run: FineTuningRun) -> dict[str, object]:
    """Trains an embedding model once for each seed, or resumes an unfinished run.

    Returns:
        The scores of results.json, those of `score_embeddings`.
    """
    settings = run.settings
    start = open_pretrained(settings)
    model = _embedder_settings(embedding, start, settings.max_seq_length)
    loss = embedding.make_loss(model.width(start.config.hidden_size))
    model = replace(model, matryoshka_sizes=tuple(loss.sizes))
    largest_score = max(map(abs, embedding.numeric_range))
    if settings.do_train:
        _check_devices(loss, run)
    splits = _Splits(
        read_training_rows(embedding) if settings.do_train else None,
        read_evaluation_rows(embedding) if settings.do_eval else None,
    )
    if splits.train is None and splits.dev is None:
        raise InputError(
            "nothing to do: found no development examples; expected --eval_file, or --do_train"
        )
    if splits.train is not None:
        check_training_rows(splits.train, loss, run.training.train_batch_size)
    if splits.dev is not None:
        check_evaluation_rows(splits.dev)
    task = make_task(splits, loss, model, start.tokenizer(), largest_score)
    return fine_tune(run, start, task)


def make_task(
    splits: _Splits,
    loss: EmbeddingLoss,
    settings: EmbedderSettings,
    tokenizer: BertTokenizer,
    largest_score: float = 1.0,
) -> FineTuningTask:
    """Creates the task that trains on and scores the texts of a run.

    Scores are divided by `largest_score` for training.
    """
    processor = EmbeddingProcessor(tokenizer, settings)
    all_prepared: dict[str, Prepared] = {}

    train = score = None
    if splits.train is not None:
        in_training = EmbeddingProcessor(tokenizer, settings.in_training)
        all_prepared["train"] = prepare(
            in_training.preprocess, [splits.train.texts], tokenizer=processor.tokenizer
        )
        train = splits.train.labelled(all_prepared["train"].examples, largest_score)
    if splits.dev is not None:
        dev = all_prepared["dev"] = prepare(
            processor.preprocess, [splits.dev.texts], tokenizer=processor.tokenizer
        )

        def score(predict: Predict) -> dict[str, float]:
            vectors = pooled_rows(dev, predict(dev.examples)["vectors"], processor)
            return score_embeddings(splits.dev, vectors, settings.matryoshka_sizes)

    return FineTuningTask(
        make=lambda config, dtype: TextEmbedder(
            make_encoder(config, settings, dtype), tokenizer, settings
        ),
        objective=embedding_objective(loss, settings.pooling),
        train=train,
        score=score,
        best=best_metric(splits.dev),
        data={} if splits.dev is None else {"dev": _items(splits.dev)},
        truncated=report_splits(all_prepared, "texts", f"max_seq_length={settings.max_seq_length}"),
    )


def _embedder_settings(
    embedding: EmbeddingSettings, start: Pretrained, max_seq_length: int
) -> EmbedderSettings:
    source = Source.of(start.checkpoint)
    source.check_heads(TextEmbedder.task, TextEmbedder.__name__)
    saved = saved_settings(source)
    pooling = embedding.pooling or saved.pooling or POOLINGS[0]
    return replace(
        saved,
        max_seq_length=max_seq_length,
        pooling=pooling,
        long_text=embedding.long_text_settings,
    )


def _check_devices(loss: EmbeddingLoss, run: FineTuningRun) -> None:
    devices = run.strategy.num_replicas_in_sync
    if devices > 1 and loss.name in IN_BATCH_LOSSES:
        raise InputError(
            f"--loss={loss.name}: got {devices} devices; expected one, because the loss compares "
            "all examples of a batch. For larger batches, use --gradient_accumulation_steps"
        )
    if BACKEND != "tensorflow" and run.training.gradient_accumulation_steps > 1:
        raise InputError(
            f"--gradient_accumulation_steps={run.training.gradient_accumulation_steps}: the loss "
            f"of embeddings needs KERAS_BACKEND=tensorflow for micro-batches, got {BACKEND}"
        )


def _items(rows: TextRows) -> list[tuple[object, ...]]:
    scores = [None] * len(rows) if rows.scores is None else np.asarray(rows.scores).tolist()
    return list(zip(*rows.columns, scores, strict=True))
