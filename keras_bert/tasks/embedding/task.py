"""Defines TextEmbedder, the signatures of its exports, and fine-tuning on files."""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import DEFAULT_MAX_SEQ_LENGTH, Checkpoint
from keras_bert.checkpoints.hugging_face import CONFIG
from keras_bert.checkpoints.sentence_transformers import read_sentence_transformer
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.engines import NetworkSpec
from keras_bert.export.saved_model import ServedTask
from keras_bert.models.encoder import (
    POOLINGS,
    BertEncoder,
    PooledEncoder,
    SentenceEncoder,
    vector_size,
)
from keras_bert.tasks.checks import (
    check_count,
    check_not_blank,
    check_not_empty,
    check_texts,
    check_validation_data,
    first_row,
    is_one_text,
    split_examples,
    split_rows,
)
from keras_bert.tasks.embedding.data import (
    SCALED,
    EmbeddingSettings,
    TextRows,
    check_evaluation_pairs,
    check_evaluation_rows,
    check_pairs_to_mine,
    check_rows,
    check_scores,
    check_training_rows,
    make_loss,
    matryoshka_sizes,
    read_evaluation_rows,
    read_training_rows,
    with_negatives,
)
from keras_bert.tasks.embedding.losses import IN_BATCH_LOSSES, EmbeddingLoss, EmbeddingObjective
from keras_bert.tasks.embedding.processor import EmbedderSettings, EmbeddingProcessor
from keras_bert.tasks.embedding.search import (
    best_metric,
    cosine_similarity,
    mine_examples,
    nearest,
    score_embeddings,
    truncated_vectors,
    write_triplets,
)
from keras_bert.tasks.examples import ModelRunner
from keras_bert.tasks.fine_tuning import (
    FineTuningRun,
    open_pretrained,
    prepare_sets,
    run_fine_tuning,
)
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.prepared import (
    Arrays,
    Prepared,
    PreparedSet,
    check_memory,
    gathered,
    prepare,
    with_strings,
)
from keras_bert.tasks.retrieval import RetrievalData, as_retrieval_data
from keras_bert.tasks.settings import MiningSettings
from keras_bert.tasks.task import Task
from keras_bert.tasks.text_processor import TRUNCATED, WINDOWS, LongText, ServedTexts
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.backend import BACKEND

_POOLER = "encoder/pooler"
# The prompts for the arguments of `search`, as in sentence-transformers; the first one counts.
_PROMPTS = {"queries": ("query",), "corpus": ("document", "passage", "corpus")}
_TEXTS = 2**16  # texts whose vectors of all poolings are in memory at once


class ServedEmbedding(ServedTexts):
    """The SavedModel signatures of an encoder, which map texts or token ids to vectors."""

    processor: EmbeddingProcessor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"vectors": "row"}, pooled=self.processor.settings.pooled)

    def outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes the vectors of each row, float32 [n, 2 or 3, H]."""
        # All vectors of a row are one tensor, since `reduced` keeps one tensor per row.
        shape = [len(self.processor.settings.names), self.network.config.hidden_size]
        vectors = self.network.reduced(input_ids, segment_ids, self._vectors, shape)
        return {"vectors": vectors}

    def _vectors(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Computes the vectors of some rows: hidden states [t, H] -> [b, 2 or 3, H]."""
        vectors = self.processor.vectors(hidden, splits)
        if not self.processor.settings.pooled:
            return vectors
        pooled = self.network.pooled(vectors[:, 0])
        return tf.concat([vectors, pooled[:, tf.newaxis]], axis=1)


class TextEmbedder(Task):
    """Converts texts to vectors.

    Example:
        embedder = TextEmbedder.from_pretrained("bert")
        vectors = embedder.predict(["A text.", "Another one."])["mean"]
        embedder.fit((questions, answers), epochs=1, batch_size=64, seed=0)

    Args:
        model: a `BertEncoder`.
        tokenizer: a tokenizer with the model's vocabulary.
        settings: text length and normalization.
    """

    task: ClassVar[str] = "embedding"
    settings_class: ClassVar[type] = EmbedderSettings
    served_class: ClassVar[type[ServedTask]] = ServedEmbedding
    optional_weights: ClassVar[tuple[str, ...]] = (_POOLER,)
    _public: ClassVar[tuple[str, ...]] = (
        *Task._public,
        *("encode", "similarity", "search", "mine_negatives", "set_long_text"),
    )

    settings: EmbedderSettings
    processor: EmbeddingProcessor

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        max_seq_length: int | None = None,
        normalize: bool | None = None,
        *,
        pooling: str | None = None,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "TextEmbedder":
        """Loads the encoder of a model.

        Args:
            path: any checkpoint that `--init_checkpoint` accepts, or the name of a model on the
                Hugging Face Hub, such as "sentence-transformers/all-MiniLM-L6-v2".
            max_seq_length: maximum number of tokens in a text; defaults to the maximum in training,
                then to the maximum in the sentence-transformers files, or 128.
            normalize: whether vectors are scaled to length 1; defaults to the saved setting, then
                to whether modules.json (sentence-transformers) contains a Normalize module.
            pooling: the vector that `fit` trains and `evaluate` scores, `mean` or `cls`; defaults
                to that of the sentence-transformers files, then to the saved setting, or `mean`.
            tokenizer: replaces the tokenizer of the checkpoint.
            dtype: dtype policy, such as "mixed_bfloat16"; defaults to Keras' global policy.

        Raises:
            InputError: the path cannot be opened, or a setting is out of range.
        """
        return cls._open(
            path,
            max_seq_length=max_seq_length,
            normalize=normalize,
            pooling=pooling,
            tokenizer=tokenizer,
            dtype=dtype,
        )

    @classmethod
    def settings_of_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        max_seq_length: int | None = None,
        normalize: bool | None = None,
        pooling: str | None = None,
    ) -> EmbedderSettings:
        """Returns the settings: the arguments, or else those of the checkpoint or defaults."""
        if pooling not in (None, *POOLINGS):
            raise InputError(f"pooling={pooling!r:.60}: expected one of {', '.join(POOLINGS)}")
        files = read_sentence_transformer(checkpoint.path)
        with checkpoint.open_weights() as stored:
            pooled = stored.has(f"{_POOLER}/dense/kernel")
        length = files["max_seq_length"] or DEFAULT_MAX_SEQ_LENGTH
        changes = {
            "max_seq_length": checkpoint.max_seq_length(max_seq_length, length),
            "normalize": checkpoint.setting("normalize", bool, normalize, files["normalize"]),
            "pooling": pooling or files["pooling"] or checkpoint.setting("pooling", str, None),
            "pooled": pooled and checkpoint.setting("pooled", bool, None, True),
            "long_text": LongText.saved(checkpoint),
        }
        settings = EmbedderSettings(**files | changes)
        sizes = checkpoint.saved_settings.get("matryoshka_sizes", ())
        where = f"{checkpoint.path / CONFIG}: matryoshka_sizes is {sizes!r:.60}"
        sizes = matryoshka_sizes(where, sizes, settings.width(checkpoint.config.hidden_size))
        return replace(settings, matryoshka_sizes=sizes)

    @classmethod
    def make_model(
        cls, config: BertConfig, settings: EmbedderSettings, dtype: str | None
    ) -> keras.Model:
        """Creates a newly initialized encoder, with Dense layers if the settings have any."""
        if not settings.dense:
            return BertEncoder(config, dtype=dtype)
        return SentenceEncoder(config, settings.dense, dtype=dtype)

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> EmbedderSettings:
        """Restores the settings from the content of an export's export.json."""
        pooled = "pooled" in info["signatures"]["serving_default"]["outputs"]
        return super().settings_of_export({**info, "pooled": pooled})

    def fit(
        self,
        texts: Any,
        scores: Any = None,
        *,
        text: tuple[str, ...] = ("anchor", "positive"),
        label: str | None = None,
        loss: EmbeddingLoss | str | None = None,
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the encoder on one device and returns the history, as `keras.Model.fit` does.

        Example:
            embedder.fit((["How long is it?"], ["Its length is 2 m."]), epochs=1)
            embedder.fit((["a film"], ["a movie"]), [0.9], loss="cosent")

        If long texts are split into windows, training uses the first window of each text.

        Args:
            texts: for pairs, a tuple of two lists of n strings: anchors and positives, or the texts
                of scored pairs; for triplets, a tuple of three lists, the last one of negatives.
                Or a list of such tuples of strings, a table, or a tf.data.Dataset, whose elements
                are (anchor, positive), triplets or ((first, second), score).
            scores: n numbers from -1 to 1, the similarities of the pairs; None for pairs and
                triplets without scores.
            text: the names of the table's columns of texts.
            label: the name of the table's column of scores; None without scores.
            loss: `mnrl` (the default) without scores; `cosent` (the default) or `cosine` with
                scores; or an `EmbeddingLoss` with other settings, such as Matryoshka sizes.
            validation_data: (texts, scores) or (texts, None), a table, a dataset or retrieval data,
                evaluated after each epoch; the logs contain the metrics as `val_spearman` and so
                on. The highest `val_spearman`, `val_recall_at_1` or `val_ndcg_at_10` determines the
                best weights.
            callbacks: Keras callbacks.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings. More than
                one micro-batch needs TensorFlow.

        Raises:
            InputError: an argument is invalid.
        """
        settings, _ = self._check_fit(options, validation_data)
        layers = self.config.num_hidden_layers
        if settings.num_frozen_layers == layers and not self.settings.dense:
            raise InputError(
                f"num_frozen_layers={layers}: leaves no weights to train; expected less than "
                f"{layers}, the number of layers"
            )
        texts, scores = split_examples("texts", texts, scores, text, label)
        rows = check_rows("texts", texts, scores)
        if settings.validation_split:
            columns = *rows.columns, scores if scores is None else rows.scores.tolist()
            split = split_rows(settings.validation_split, settings.seed, *columns)
            (*columns, scores), (*dev_columns, dev_scores) = split
            rows = check_rows("texts", tuple(columns), scores)
            validation_data = tuple(dev_columns[:2]), dev_scores
        loss = loss or ("mnrl" if scores is None else "cosent")
        loss = loss if isinstance(loss, EmbeddingLoss) else EmbeddingLoss(loss)
        if loss.takes_scores != (scores is not None):
            expected = "scores" if loss.takes_scores else "no scores"
            raise InputError(f"loss={loss.name!r}: expected examples with {expected} for this loss")
        where = f"sizes={loss.sizes!r:.60}"
        sizes = matryoshka_sizes(where, loss.sizes, vector_size(self.model))
        loss = EmbeddingLoss(loss.name, loss.scale, len(rows.columns), sizes)
        if scores is not None:
            check_scores(rows, remedy=SCALED)
        check_training_rows(rows, loss, settings.batch_size)
        _check_backend("", settings.gradient_accumulation_steps)
        evaluate, held_out = None, None
        if validation_data is not None:
            expected = "a tuple (texts, scores), with None for pairs without scores"
            held_out = as_retrieval_data(validation_data)
            if held_out is None:
                arguments = check_validation_data(validation_data, expected, text[:2], label)
                held_out = check_evaluation_pairs("validation_data[0]", *arguments)
            dev = self.prepared_set(held_out)
            self.report_truncation(dev.prepared.truncated, "validation texts")
            evaluate = functools.partial(self._evaluate, dev)
        pooling = self.settings.pooling or "mean"
        self._replace_settings(pooling=pooling, matryoshka_sizes=loss.sizes)
        train, best = self.prepared_set(rows, training=True).prepared, best_metric(held_out)
        objective = EmbeddingObjective(loss, pooling)
        return fit_task(self, train, objective, settings, evaluate, callbacks, best)

    def evaluate(
        self,
        texts: Any,
        scores: Any = None,
        batch_size: int = 32,
        *,
        text: tuple[str, str] = ("anchor", "positive"),
        label: str | None = None,
    ) -> dict[str, float]:
        """Scores the cosines of pairs of texts, or a search, with the pooling of the model.

        Example:
            embedder.evaluate((questions, answers))["recall_at_1"]
            embedder.evaluate("beir/scifact")["ndcg_at_10"]

        Args:
            texts: pairs, given as for `fit`; or retrieval data, a `RetrievalData` or the path of a
                BEIR directory, whose qrels/test.tsv is used, or of another file in qrels.
            scores: n numbers from -1 to 1; None for pairs of an anchor and its positive.
            batch_size: number of texts per batch.
            text: the names of the table's columns of texts, as for `fit`.
            label: the name of the table's column of scores, as for `fit`.

        Returns:
            With scores, "spearman" and "pearson", the correlations of cosines and scores. Without,
                "recall_at_1", "recall_at_5" and "recall_at_10": the fraction of anchors whose
                positive is among the nearest of all positives. For retrieval data, the metrics of
                `evaluate_rankings` for the 1000 nearest documents of each query, such as
                "ndcg_at_10", "mrr_at_10", "recall_at_100" and "map"; prompts are used as in
                `search`. A model with Matryoshka sizes has the same names for each smaller size,
                such as "spearman_64".

        Raises:
            InputError: an argument is invalid, there are no texts, or all scores are equal.
        """
        data = as_retrieval_data(texts)
        if data is not None:
            if scores is not None:
                raise InputError("scores: have no effect with retrieval data; expected none")
            queries, corpus = data.columns
            vectors = self.vectors_of(batch_size, queries=queries, corpus=corpus)
            sizes = self.settings.matryoshka_sizes
            return score_embeddings(data, np.concatenate(vectors), sizes)
        texts, scores = split_examples("texts", texts, scores, text, label)
        rows = check_evaluation_pairs("texts", texts, scores)
        vectors = self._predict((rows.texts,), batch_size)[self.settings.pooling or "mean"]
        return score_embeddings(rows, vectors, self.settings.matryoshka_sizes)

    def predict(
        self,
        texts: Any,
        batch_size: int = 32,
        size: int | None = None,
        prompt_name: str | None = None,
        *,
        text: str = "text",
    ) -> dict[str, Any]:
        """Converts texts to vectors.

        Args:
            texts: one string, or n strings: a list, a column, a table or a tf.data.Dataset, as for
                `TextClassifier.predict`.
            batch_size: number of texts per batch.
            size: the size to which vectors are truncated; None for whole vectors. Truncated vectors
                are useful if the model was trained with this Matryoshka size.
            prompt_name: the name of the prompt that is put before each text, such as "query";
                None for the default prompt of the model, if it has one.
            text: the name of the table's column of texts.

        Returns:
            The values of one string, or arrays for n strings:
            "cls", the last hidden state of [CLS]; "mean", the mean of the last hidden states; and
                "pooled", if the model has a pooler; float32 [n, H] each, or [n, size]. The one of
                the model's pooling is the vector of sentence-transformers, after its Dense modules.
            "truncated", bool [n]: whether tokens of the text were removed.
            "num_tokens", int32 [n]: number of tokens with [CLS] and [SEP]; for windows, the sum.
        """
        if is_one_text("texts", texts):
            return first_row(self.predict([texts], batch_size, size, prompt_name))
        columns = check_texts("texts", split_examples("texts", texts, None, text, None)[0])
        settings = self.settings
        prompt, preprocess = settings.prompt(prompt_name), None
        if prompt_name not in (None, settings.default_prompt_name):
            if not self.is_export:
                preprocess = functools.partial(self.processor.preprocess, prompt_name=prompt_name)
            elif settings.default_prompt_name is None:
                columns = [[prompt + text for text in column] for column in columns]
            else:
                raise InputError(
                    f"prompt_name={prompt_name!r}: the export puts the prompt "
                    f"{settings.default_prompt_name!r} before each text; expected None"
                )
        answers = with_strings(gathered(list(self._answers(columns, batch_size, preprocess))))
        if size is not None:
            for name in self.settings.names:
                answers[name] = truncated_vectors(answers[name], size, self.settings.normalize)
        return answers

    def encode(
        self,
        texts: Any,
        batch_size: int = 32,
        size: int | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Converts texts to the vectors of the model's pooling, or else the mean, as `predict`.

        Example:
            embedder = TextEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
            embedder.encode(["A text.", "Another one."]).shape  # (2, 384)

        Returns:
            float32 [n, H], or [H] for one string.
        """
        if isinstance(texts, str):
            return self.encode([texts], batch_size, size, prompt_name)[0]
        return self.predict(texts, batch_size, size, prompt_name)[self.settings.pooling or "mean"]

    def similarity(self, first: Any, second: Any) -> np.ndarray:
        """Computes the cosines of A and B texts, float32 [A, B].

        The arguments are texts, or vectors that `encode` has returned.
        """
        return cosine_similarity(*self.vectors_of(32, first=first, second=second))

    def search(self, queries: Any, corpus: Any, top_k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Finds the texts of a corpus with the highest cosines to each query, of all texts.

        Example:
            vectors = embedder.encode(corpus)  # Once, for several searches.
            indices, scores = embedder.search("How long may a text be?", vectors, top_k=3)

        Args:
            queries: Q texts or vectors, or one.
            corpus: N texts or vectors. For texts, the prompts named "query" and "document" are
                used, if the model has them.
            top_k: the number of texts to find.

        Returns:
            The indices of the texts, int64 [Q, top_k], and their cosines, float32 [Q, top_k],
            highest first, or [top_k] each for one query; fewer if N is smaller.
        """
        check_count(top_k, "top_k")
        asked, searched = self.vectors_of(32, queries=queries, corpus=corpus)
        searched = np.atleast_2d(searched)
        check_not_empty("corpus", searched)
        indices, scores = nearest(np.atleast_2d(asked), searched, top_k)
        return (indices[0], scores[0]) if asked.ndim == 1 else (indices, scores)

    def mine_negatives(
        self,
        queries: Any,
        positives: Any = None,
        corpus: Any = None,
        *,
        num_negatives: int = 3,
        skip_top: int = 0,
        margin: float | None = None,
        output_format: str = "triplet",
        batch_size: int = 32,
    ) -> tuple[list[str], ...]:
        """Finds texts that are near to queries but not their positives: examples to train on.

        The meaning of the arguments is that of `mine_hard_negatives` of sentence-transformers: of
        the nearest texts, the positives are removed, then those that the margin excludes. Of the
        rest, the nearest `skip_top` are skipped, and the next `num_negatives` are the negatives.
        The text of the query is never a negative.

        Example:
            triplets = embedder.mine_negatives(questions, answers, num_negatives=1, margin=0.05)
            embedder.fit(triplets, epochs=1)
            groups = embedder.mine_negatives(questions, answers, output_format="n-tuple")
            reranker.fit(groups, epochs=1)

        Args:
            queries: n texts; or, without the next two arguments, retrieval data: a
                `RetrievalData` or the path of a BEIR directory, whose qrels/train.tsv is used, or
                of another file in qrels.
            positives: the positive of each query. Equal queries have several.
            corpus: other texts that may be negatives, besides the positives of other queries.
            num_negatives: the number of negatives of a pair; a query may have fewer.
            skip_top: the number of the nearest texts that are skipped, because they may be
                positives that are not labeled.
            margin: by how much the cosine of a negative must be lower than that of all positives;
                None if it may be higher.
            output_format: `triplet`, or `n-tuple` for the groups of a reranker.
            batch_size: number of texts per batch.

        Returns:
            Anchors, positives and negatives, as `fit` takes them: for each pair, its negatives are
            consecutive triplets, nearest first. For `n-tuple`, each pair that has all negatives is
            an example with a column for each negative, as `TextClassifier.fit` takes them.

        Raises:
            InputError: an argument is invalid, or there are no negatives.
        """
        settings = MiningSettings(num_negatives, skip_top, margin, output_format)
        rows, texts = check_pairs_to_mine(queries, positives, corpus)
        return mine_examples(rows, texts, functools.partial(self.vectors_of, batch_size), settings)

    def vectors_of(self, batch_size: int, **arguments: Any) -> list[np.ndarray]:
        """Returns the vectors of arguments that are texts or vectors, [n, H] or [H] each.

        Raises:
            InputError: an argument has another type, a query is empty, vectors differ in size, or
                a value is not finite.
        """
        vectors = []
        for name, value in arguments.items():
            if isinstance(value, list | tuple) and value and _is_float(value[0]):
                value = np.stack(value)
            if not _is_float(value):
                texts = check_texts(name, [value] if isinstance(value, str) else value)[0]
                if name == "queries":
                    check_not_blank(name, texts)
                prompt = self._prompt_name(name)
                parts = [
                    self.encode(texts[start : start + _TEXTS], batch_size, prompt_name=prompt)
                    for start in range(0, max(1, len(texts)), _TEXTS)
                ]
                value = parts[0][0] if isinstance(value, str) else np.concatenate(parts)
            array = np.asarray(value, np.float32)
            # The sum of a vector is finite if all its values are.
            invalid = np.flatnonzero(~np.isfinite(np.sum(array, axis=-1)))
            if len(invalid):
                raise InputError(
                    f"{name}: vector {invalid[0]} has values that are not finite, so its cosines "
                    "are NaN; expected finite numbers"
                )
            vectors.append(array)
        if len({each.shape[-1] for each in vectors}) > 1 or any(each.ndim > 2 for each in vectors):
            shapes = [f"{name} {[*v.shape]}" for name, v in zip(arguments, vectors, strict=True)]
            raise InputError(
                f"the vectors have the shapes {', '.join(shapes)}; expected [n, H] with the same H"
            )
        return vectors

    def _prompt_name(self, argument: str) -> str | None:
        """Returns the name of the prompt for an argument of `search`; None for the default one."""
        prompts = self.settings.prompts
        return next((name for name in _PROMPTS.get(argument, ()) if name in prompts), None)

    def prepared_set(self, items: TextRows | RetrievalData, training: bool = False) -> PreparedSet:
        """Preprocesses the texts of pairs, or queries and documents with their prompts."""
        if isinstance(items, TextRows):
            settings, texts = self.settings, items.texts
            if training:
                # A loss needs one row per text, so only the first window is used. As in
                # sentence-transformers, no prompt is used.
                is_split = settings.long_text.strategy == WINDOWS
                long_text = TRUNCATED if is_split else settings.long_text
                settings = replace(settings, long_text=long_text, default_prompt_name=None)
        else:
            settings, texts = replace(self.settings, default_prompt_name=None), []
            for name, column in zip(_PROMPTS, items.columns, strict=True):
                prompt = self.settings.prompt(self._prompt_name(name))
                texts += [prompt + text for text in column]
        preprocess = EmbeddingProcessor(self.tokenizer, settings).preprocess
        prepared = prepare(preprocess, [texts], tokenizer=self.tokenizer)
        return PreparedSet(items.labeled(prepared) if training else prepared, items=items)

    def score_outputs(self, evaluated: PreparedSet, outputs: Arrays) -> dict[str, float]:
        """Scores the vectors of pairs, or of queries and documents."""
        prepared = evaluated.prepared
        parts = prepared.split(outputs["vectors"], per_token=False)
        pooled = map(self.processor.pooled, parts, prepared.chunks)
        vectors = np.concatenate([*pooled])[:, : self.settings.truncate_dim]
        return score_embeddings(evaluated.items, vectors, self.settings.matryoshka_sizes)

    def _evaluate(self, evaluated: PreparedSet, batch_size: int = 32) -> dict[str, float]:
        examples = evaluated.prepared.examples
        outputs = self._scoring_runner.run(examples, batch_size, per_token=False)
        return self.score_outputs(evaluated, outputs)

    @property
    def prediction_model(self) -> PooledEncoder:
        """The encoder with the pooling of the model, or else the mean."""
        return PooledEncoder(self.model, self.settings.pooling or "mean")

    @property
    def layers_without_loss(self) -> Sequence[keras.layers.Layer]:
        """The pooler, on which no loss depends."""
        return [self.model.pooler]

    def saved_content(self) -> dict[str, Any]:
        """Returns what a saved model directory contains besides the weights.

        If the pooling is known, sentence-transformers can open the directory.
        """
        content = super().saved_content()
        if self.settings.pooling is not None:
            content["sentence_transformer"] = vars(self.settings)
        return content

    def make_processor(self) -> EmbeddingProcessor:
        """Creates the processor for the current settings."""
        return EmbeddingProcessor(self.tokenizer, self.settings, getattr(self._model, "dense", ()))

    def export_entries(self) -> dict[str, Any]:
        """Returns the entries of export.json for preprocessing and decoding."""
        settings = self.settings
        return super().export_entries() | {
            "normalize": settings.normalize,
            "pooling": settings.pooling,
            "matryoshka_sizes": [*settings.matryoshka_sizes],
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt_name,
        }

    @functools.cached_property
    def _runner(self) -> ModelRunner:
        # The hidden states of all tokens would need much memory outside the device.
        return ModelRunner(PooledEncoder(self.model, self.settings.names), self.tokenizer)

    @functools.cached_property
    def _scoring_runner(self) -> ModelRunner:
        return ModelRunner(self.prediction_model, self.tokenizer)

    def _saved_settings(self) -> dict[str, Any]:
        saved = super()._saved_settings()
        for name in ("long_text", "dense", "prompts", "default_prompt_name", "truncate_dim"):
            del saved[name]  # Others than `long_text` are in the files of sentence-transformers.
        return saved | self.settings.long_text.to_dict()

    def _outputs(self, prepared: Prepared, batch_size: int) -> dict[str, np.ndarray]:
        """Returns {"vectors": float32 [n, 2 or 3, H]} for n rows, which are windows or texts."""
        shape = [len(prepared.examples), len(self.settings.names), self.model.config.hidden_size]
        check_memory(f"vectors of {shape[0]} texts or windows", 4 * math.prod(shape))
        return super()._outputs(prepared, batch_size)

    # --- fine-tuning ---

    @classmethod
    def fine_tune(cls, embedding: EmbeddingSettings, run: FineTuningRun) -> dict[str, object]:
        """Trains an embedder on files, or resumes an unfinished run; or mines hard negatives."""
        start = open_pretrained(run.settings)
        start.check_task(cls.task, cls.__name__)
        do_train, length = run.settings.do_train, run.settings.max_seq_length
        if do_train and not embedding.mine_negatives:
            embedding = with_negatives(embedding)
        saved = cls.settings_of_checkpoint(start)
        loss = make_loss(embedding, saved.width(start.config.hidden_size))
        settings = replace(
            saved,
            max_seq_length=length,
            pooling=embedding.pooling or saved.pooling or POOLINGS[0],
            long_text=LongText.saved(start, embedding.long_text, length),
            matryoshka_sizes=loss.sizes,
        )
        embedder = cls(None, start.tokenizer(), settings)
        if do_train or embedding.mine_negatives:
            _check_devices(loss, run)
        if embedding.mine_negatives:
            return write_triplets(embedding, run, start, embedder)
        train = read_training_rows(embedding) if do_train else None
        dev = read_evaluation_rows(embedding) if run.settings.do_eval else None
        if dev is None and not do_train:
            raise InputError(
                "nothing to do: found no development examples; expected --eval_file, or --do_train"
            )
        if do_train:
            check_training_rows(train, loss, run.training.train_batch_size)
        if isinstance(dev, TextRows):
            check_evaluation_rows(dev)
        sets = prepare_sets(embedder, train, {} if dev is None else {"": dev}, {})
        objective = EmbeddingObjective(loss, settings.pooling)
        return run_fine_tuning(run, start, embedder, objective, *sets, best=best_metric(dev))


def _is_float(value: Any) -> bool:
    """Returns whether a value is an array or a tensor of floats, of any library."""
    return "float" in str(getattr(value, "dtype", ""))


def _check_devices(loss: EmbeddingLoss, run: FineTuningRun) -> None:
    devices = run.strategy.num_replicas_in_sync
    if devices > 1 and loss.name in IN_BATCH_LOSSES:
        raise InputError(
            f"--loss={loss.name}: got {devices} devices; expected one, because the loss compares "
            "all examples of a batch. For larger batches, use --gradient_accumulation_steps"
        )
    _check_backend("--", run.training.gradient_accumulation_steps)


def _check_backend(prefix: str, steps: int) -> None:
    if BACKEND != "tensorflow" and steps > 1:
        raise InputError(
            f"{prefix}gradient_accumulation_steps={steps}: the loss of embeddings needs "
            f"KERAS_BACKEND=tensorflow for micro-batches, got {BACKEND}"
        )
