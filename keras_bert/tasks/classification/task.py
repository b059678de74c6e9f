"""Defines TextClassifier, the signatures of its exports, and fine-tuning on files."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import DEFAULT_MAX_SEQ_LENGTH, Checkpoint
from keras_bert.checkpoints.sentence_transformers import (
    CROSS_ENCODER,
    cross_encoder_entry,
    saved_max_seq_length,
)
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.saved_model import ServedTask
from keras_bert.models import BertClassifier
from keras_bert.tasks.checks import (
    check_columns,
    check_count,
    check_list,
    check_not_blank,
    check_not_empty,
    check_same_length,
    check_strings,
    check_texts,
    check_validation_data,
    columns_of_tuples,
    described,
    first_row,
    is_one_text,
    split_examples,
    split_rows,
)
from keras_bert.tasks.classification.data import (
    DEFAULT_METRICS,
    ONE_LOGIT,
    ClassificationSettings,
    given_label_array,
    given_labels,
    group_labels,
    label_array,
    pair_columns,
    read_data,
    warn_of_absent_labels,
    weights_of_classes,
)
from keras_bert.tasks.classification.metrics import (
    ClassificationObjective,
    best_temperature,
    best_thresholds,
    score,
)
from keras_bert.tasks.classification.processor import (
    ClassificationProcessor,
    ClassifierSettings,
    head_settings,
    labeled,
    metric_names,
    saved_activation,
    saved_thresholds,
    short_problem_type,
    takes_pairs,
    transformers_problem_type,
    write_predictions,
)
from keras_bert.tasks.fine_tuning import (
    FineTuningRun,
    open_pretrained,
    prepare_sets,
    run_fine_tuning,
)
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.prepared import Arrays, PreparedSet, Processor, gathered
from keras_bert.tasks.retrieval import (
    RetrievalData,
    as_retrieval_data,
    candidate_rows,
    evaluate_rankings,
    mean_scores,
)
from keras_bert.tasks.tables import Texts
from keras_bert.tasks.task import EXAMPLE_TEXT, Task, forgets_labels
from keras_bert.tasks.text_processor import TRUNCATED, ArraySteps, LongText, ServedTexts
from keras_bert.text.settings import USER_TOKENS
from keras_bert.text.tokenizer import BertTokenizer

_PAIRS = 2**14  # pairs that are predicted at once, but at least those of one query


class TextClassifier(Task):
    """Classifies texts or pairs of texts, predicts a score for them, or reranks search results.

    Example:
        classifier = TextClassifier.from_pretrained("bert", labels=["0", "1"])
        classifier.fit((first, second), labels, epochs=3, batch_size=16, seed=0)
        classifier.predict((first, second))["label"]

        reranker = TextClassifier.from_pretrained("bert", problem_type="reranking")
        reranker.fit((queries, positives, negatives), epochs=1)
        indices, scores = reranker.rank("How long is it?", passages, top_k=3)

    Args:
        model: a BertClassifier.
        tokenizer: the tokenizer for the model's vocabulary.
        settings: labels and maximum length.
    """

    task: ClassVar[str] = "classification"
    settings_class: ClassVar[type] = ClassifierSettings
    processor_class: ClassVar[type[Processor]] = ClassificationProcessor
    served_class: ClassVar[type[ServedTask]] = ServedTexts
    example: ClassVar[Mapping[str, str]] = {
        "text": EXAMPLE_TEXT,
        "text_pair": "Who had an impact on Europe?",
    }
    argument_names: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    export_options: ClassVar[tuple[str, ...]] = ("max_seq_length", "pair")
    _public: ClassVar[tuple[str, ...]] = (
        *Task._public,
        *("calibrate", "labels", "rank", "set_long_text"),
    )

    settings: ClassifierSettings
    processor: ClassificationProcessor

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        problem_type: str | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "TextClassifier":
        """Loads a fine-tuned classifier, or adds a new head to a pre-trained model.

        Args:
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset, or the name of a
                model on the Hugging Face Hub, such as "bert-base-uncased".
            labels: the names of the classes of a new head; by default the labels of the model's
                head, or else those in the data of the first `fit`.
            max_seq_length: maximum number of tokens of a text or pair; by default the value used in
                training, or 128.
            problem_type: `single_label`, `multi_label`, `regression` or `reranking`; by default
                that of the model's head, or `single_label` for a new head. A CrossEncoder of
                sentence-transformers with one logit is a reranker.
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".

        Raises:
            InputError: the path cannot be opened, the model is of another task, or the labels do
                not match the model's head.
        """
        return cls._open(
            path,
            labels=labels,
            max_seq_length=max_seq_length,
            problem_type=problem_type,
            tokenizer=tokenizer,
            dtype=dtype,
        )

    @classmethod
    def settings_of_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        problem_type: str | None = None,
        pair: bool | None = None,
    ) -> ClassifierSettings:
        """Returns the settings: the arguments, or else those of the checkpoint or defaults.

        `pair` is whether the exported model takes two texts; by default, whether the model was
        trained on pairs, if that is known.
        """
        settings = head_settings(checkpoint, labels, problem_type)
        is_cross_encoder = CROSS_ENCODER in checkpoint.settings
        length = saved_max_seq_length(checkpoint.path, True) if is_cross_encoder else None
        if pair is None and settings.problem_type == "reranking":
            pair = True
        settings = replace(
            settings,
            max_seq_length=checkpoint.max_seq_length(
                max_seq_length, length or DEFAULT_MAX_SEQ_LENGTH
            ),
            pair=checkpoint.setting("pair", bool, pair, takes_pairs(checkpoint)),
            long_text=LongText.saved(checkpoint),
            thresholds=saved_thresholds(checkpoint),
            activation=saved_activation(checkpoint, settings.problem_type),
            metrics=metric_names(checkpoint, settings.problem_type),
        )
        if settings.pair:
            checkpoint.check_segments()
        return settings

    @classmethod
    def make_model(
        cls, config: BertConfig, settings: ClassifierSettings, dtype: str | None
    ) -> BertClassifier:
        """Creates a newly initialized classifier."""
        return BertClassifier(config, settings.num_logits, dtype=dtype)

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> ClassifierSettings:
        """Returns the settings recorded in an export's export.json."""
        kind = short_problem_type(info["problem_type"], "export.json")
        return super().settings_of_export({**info, "problem_type": kind})

    @classmethod
    def array_steps(cls, loaded: Any, info: Mapping[str, Any]) -> ArraySteps | None:
        """Returns the steps without TensorFlow; None for user tokens, or long texts in parts."""
        settings = cls.settings_of_export(info)
        # Exports of older releases have no function `tokenize`.
        is_plain = settings.long_text == TRUNCATED and USER_TOKENS not in info
        if not is_plain or not hasattr(loaded, "tokenize"):
            return None
        return ArraySteps(cls.processor_class(None, settings), loaded.tokenize, info)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names in the order of the logits; empty for regression and reranking."""
        return self.settings.labels

    @forgets_labels
    def fit(
        self,
        texts: Any,
        labels: Any = None,
        *,
        text: str | tuple[str, ...] = "text",
        label: str | None = "label",
        validation_data: Any = None,
        class_weights: str | Sequence[float] | np.ndarray | Mapping[Any, float] | None = None,
        class_weight: Mapping[Any, float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "TextClassifier | None" = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model on one device and returns the history, as `keras.Model.fit` does.

        Example:
            texts, labels = ["a good film", "a bad one"], ["positive", "negative"]
            stop = keras.callbacks.EarlyStopping(monitor="val_loss")
            classifier.fit(texts, labels, validation_data=(texts, labels), callbacks=[stop])

        Args:
            texts: n strings: a list, or a column of NumPy, pandas, Arrow or `datasets`. For pairs,
                a tuple of two such columns, or a list of tuples of two strings. Or texts with their
                labels: a DataFrame, a Dataset of `datasets`, a table of Arrow, or a finite
                tf.data.Dataset of (text, label), batched or not; all of it is read into memory.
                For reranking, pairs (query, passage) with labels; or groups without labels, a tuple
                of three columns or more (query, positive, negative, ...), or such tuples.
            labels: n label names, or indices of the model's labels if no label is named by an
                integer; for multi_label, n lists of label names, or a multi-hot array [n, C] of 0
                and 1 in the order of the model's C labels; for regression, n numbers; for
                reranking, n numbers from 0 to 1. None if `texts` has them, or for groups. A new
                head without labels gets the sorted names in these data, which are printed.
            text: the name of the table's column of texts, or for pairs and groups of all columns.
            label: the name of the table's column of labels; None for groups.
            validation_data: (texts, labels), or a table or dataset as for `texts`, evaluated after
                each epoch; the logs contain the metrics as `val_accuracy` and so on, and their mean
                as `val_score`, the highest value of which determines the best weights for
                `restore_best`. For reranking also retrieval data, or (retrieval data, candidates),
                as for `evaluate`; the highest `val_ndcg_at_10` determines the best weights.
            class_weights: the loss weights of the classes: `balanced`; a list or array of weights
                in the order of the labels; or {label or its index: weight}, with 1 for other
                classes.
            class_weight: the same under its name in `keras.Model.fit`.
            callbacks: Keras callbacks.
            teacher: a trained TextClassifier with the same labels and vocabulary, whose outputs the
                model learns in addition (distillation). The options distillation_weight
                and temperature belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.

        Raises:
            InputError: an argument is invalid.
        """
        settings, distillation = self._check_fit(options, validation_data, teacher)
        name = "class_weights"
        if class_weight is not None:
            if class_weights is not None:
                raise InputError("class_weight: is another name of class_weights; expected one")
            name, class_weights = "class_weight", class_weight
        texts, labels = split_examples("texts", texts, labels, text, label)
        columns = self._columns(texts, has_labels=labels is not None)
        if len(columns) < 3:
            labels = check_list("labels", labels, "labels")
            check_same_length(texts=columns[0], labels=labels)
        if self.needs_labels:
            self._set_labels(given_labels("labels", labels, self.settings.problem_type), settings)
        validation = None  # Its columns of texts and their labels.
        if settings.validation_split:
            split = split_rows(settings.validation_split, settings.seed, *columns, labels)
            (*columns, labels), (*dev_columns, dev_labels) = split
            validation = tuple(dev_columns), dev_labels
        array = self._label_array(labels, columns)
        names = ("validation_data[0]", "validation_data[1]")
        evaluate, best = None, "score"
        is_tuple = isinstance(validation_data, tuple) and len(validation_data) == 2
        searched, candidates = validation_data if is_tuple else (validation_data, None)
        data = as_retrieval_data(searched) if self._is_reranker else None
        if data is not None:
            rows = candidate_rows(data, candidates)
            evaluate, best = functools.partial(self._score_rankings, data, rows), "ndcg_at_10"
        elif validation_data is not None:
            expected = "a tuple (texts, labels)"
            dev_texts, dev_labels = check_validation_data(validation_data, expected, text, label)
            validation = self._columns(dev_texts, names[0], dev_labels is not None), dev_labels
        if validation:
            dev_array = self._label_array(validation[1], validation[0], names)
            check_not_empty("validation_data", dev_array)
            dev = PreparedSet(self._prepared(pair_columns(validation[0])), dev_array)
            self.report_truncation(dev.prepared.truncated, "validation texts")
            evaluate = functools.partial(self._evaluate, dev)
        kind = self.settings.problem_type
        weights = weights_of_classes(name, class_weights, kind, self.labels, array)
        if columns[0]:
            self._replace_settings(pair=len(columns) > 1, thresholds=())
        train = labeled(self._prepared(pair_columns(columns)), array)
        objective = ClassificationObjective(kind, weights, distillation, train.examples.group_size)
        return fit_task(self, train, objective, settings, evaluate, callbacks, best, teacher)

    def evaluate(
        self,
        texts: Any,
        labels: Any = None,
        batch_size: int = 32,
        *,
        text: str | tuple[str, ...] = "text",
        label: str | None = "label",
        candidates: Any = None,
    ) -> dict[str, float]:
        """Computes the metrics of the model on texts and labels, or of a reranker on a search.

        Example:
            indices, _ = embedder.search(*data.columns, top_k=50)
            reranker.evaluate(data, candidates=indices)["ndcg_at_10"]

        Args:
            texts: texts, given as for `fit`; for a reranker also retrieval data, a `RetrievalData`
                or the path of a BEIR directory, as for `TextEmbedder.evaluate`.
            labels: their labels, given as for `fit`; None for retrieval data.
            batch_size: number of texts per batch.
            text: the name of the table's column of texts, as for `fit`.
            label: the name of the table's column of labels, as for `fit`.
            candidates: for retrieval data, the indices of the documents to rank for each query, as
                `TextEmbedder.search` returns them for `data.columns`; by default all documents.

        Returns:
            "loss", and the metrics of the GLUE task that the loaded model was fine-tuned on. For
                other models: "accuracy" and "f1_macro" for single_label; "f1_micro", "f1_macro" and
                "accuracy" for multi_label; "pearson" and "spearman" for regression. For reranking,
                "accuracy" (of groups: the fraction whose positive has the highest score) and, for
                pairs, "spearman". For retrieval data, the metrics of `evaluate_rankings`.

        Raises:
            InputError: an argument is invalid, or there are no texts.
        """
        data = as_retrieval_data(texts) if self._is_reranker else None
        if data is not None:
            if labels is not None:
                raise InputError("labels: have no effect with retrieval data; expected none")
            return self._score_rankings(data, candidate_rows(data, candidates), batch_size)
        if candidates is not None:
            raise InputError(
                "candidates: have no effect without retrieval data for a reranker; expected none"
            )
        texts, labels = split_examples("texts", texts, labels, text, label)
        columns = self._columns(texts, has_labels=labels is not None)
        array = self._label_array(labels, columns)
        if not len(array):
            raise InputError("evaluate() got no texts; expected at least one")
        answers = self._predict(pair_columns(columns), batch_size)
        self.report_truncation(answers.get("truncated"), "texts")
        return score(self.settings, answers, array)

    def _score_rankings(
        self, data: RetrievalData, rows: Sequence[Sequence[int]], batch_size: int = 32
    ) -> dict[str, float]:
        """Scores the rankings of the documents whose indices are in the row of each query."""
        queries, corpus = data.columns
        searches = list(zip(data.relevance.items(), queries, rows, strict=True))
        size = max(1, _PAIRS // max(1, *map(len, rows)))  # queries of a block
        ids, rankings, truncated = [*data.corpus], [], []
        for start in range(0, len(searches), size):
            block = searches[start : start + size]
            pairs = [(text, i) for _, text, row in block for i in row]
            columns = [text for text, _ in pairs], [corpus[i] for _, i in pairs]
            answers = self._predict(columns, batch_size)
            truncated.append(answers["truncated"])
            logits = iter(answers["logits"][:, 0].tolist())
            for (query, judged), _, row in block:
                scores = {ids[i]: next(logits) for i in row}
                rankings.append(evaluate_rankings({query: judged}, {query: scores}))
        self.report_truncation(np.concatenate(truncated), "pairs")
        return mean_scores(rankings)

    def calibrate(
        self,
        texts: Any,
        labels: Any = None,
        batch_size: int = 32,
        *,
        text: str | tuple[str, str] = "text",
        label: str = "label",
    ) -> dict[str, Any]:
        """Makes probabilities match the frequencies of data that the model was not trained on.

        The logits are divided by the temperature with the lowest loss (Guo et al. 2017), as part of
        the head's weights. For multi_label, each label also gets the probability threshold with the
        highest F1. Saved and exported models keep both; the next `fit` removes the thresholds.

        Args:
            texts: n texts or pairs, given as for `fit`.
            labels: their labels; None if `texts` has them.
            batch_size: number of texts per batch.
            text: the name of the table's column of texts, or for pairs of two columns.
            label: the name of the table's column of labels.

        Returns:
            "temperature", from 0.1 to 10; and for multi_label "thresholds", {label: probability}.

        Raises:
            InputError: an argument is invalid, there are no texts, or the model has no classes.
        """
        texts, labels = split_examples("texts", texts, labels, text, label)
        kind, columns = self.settings.problem_type, self._columns(texts)
        if kind in ONE_LOGIT:
            raise InputError(f"calibrate: {ONE_LOGIT[kind]} has no classes; expected some")
        array = self._label_array(labels, columns)
        check_not_empty("texts", array)
        mode = getattr(self.model.classifier, "quantization_mode", None)
        if mode is not None:
            raise InputError(
                f"calibrate: the head is quantized to {mode}; expected float weights, so calibrate "
                "before quantize()"
            )
        variables = self.model.classifier.variables
        logits = self._predict(columns, batch_size)["logits"].astype(np.float64)
        temperature = best_temperature(kind, logits, array)
        for variable in variables:
            if not variable.path.endswith("lora_kernel_a"):  # It is a factor of another one.
                variable.assign(variable / temperature)
        # The weights are no longer those of the checkpoint, but were trained on the same texts.
        if self.checkpoint is not None:
            self.shown = self.shown or self.checkpoint.run.shown
            self.checkpoint = None
        if kind != "multi_label":
            return {"temperature": temperature}
        thresholds = best_thresholds(1 / (1 + np.exp(-logits / temperature)), array)
        self._replace_settings(thresholds=thresholds)
        return {
            "temperature": temperature,
            "thresholds": dict(zip(self.labels, thresholds, strict=True)),
        }

    def predict(
        self, texts: Any, batch_size: int = 32, *, text: str | tuple[str, str] = "text"
    ) -> dict[str, Any]:
        """Predicts the labels or scores of n texts or pairs.

        Args:
            texts: texts or pairs, given as for `fit`; a tf.data.Dataset has no labels. Or one text,
                or one pair as a tuple of two strings. So two single texts are a list, not a tuple,
                which is an error if the model was trained on single texts.
            batch_size: number of texts or pairs per batch.
            text: the name of the table's column of texts, or for pairs of two columns.

        Returns:
            The values of one text, or arrays for n texts:
            For single_label, "label" [n], and "probabilities" and "logits" [n, C] for the C
                classes.
            For multi_label, "labels", "probabilities" and "logits", [n, C] each. A row of "labels"
                has the labels with a probability above 0.5, or the thresholds of `calibrate`, most
                probable first, then "" as padding.
            For regression, "score" [n]. For reranking, "score" [n], by default the sigmoid of the
                logit, and "logits" [n, 1].
            For all types, "truncated" [n]: whether tokens of the text or pair were removed, because
                it has more than `max_seq_length`.

        Raises:
            InputError: an argument is invalid.
        """
        if is_one_text("texts", texts, allow_pairs=True):
            if isinstance(texts, tuple) and self.settings.pair is False:
                raise InputError(
                    "texts is a tuple of two strings, which is one pair, but the model takes "
                    "single texts; expected a list of strings, or for one pair a list of a tuple"
                )
            return first_row(self.predict([texts], batch_size))
        texts, _ = split_examples("texts", texts, None, text, None)
        return self._predict(self._columns(texts), batch_size)

    def rank(
        self, query: str, texts: Any, top_k: int | None = None, batch_size: int = 32
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sorts texts by their relevance to a query; the model must be a reranker.

        Example:
            reranker = TextClassifier.from_pretrained("cross-encoder/ms-marco-MiniLM-L6-v2")
            indices, scores = reranker.rank("How long is it?", ["It is red.", "It has 2 m."])

        Args:
            query: the text to which the others are compared.
            texts: n texts: a list or a column of strings.
            top_k: the number of texts to return, at most; None for all.
            batch_size: number of texts per batch.

        Returns:
            The indices of the texts, int64 [k], and their scores, float32 [k], highest first. Of
            equal scores, the lower index is first.

        Raises:
            InputError: an argument is invalid, a score is not finite, or the model is no reranker.
        """
        if not self._is_reranker:
            raise InputError(
                f"rank: the problem type of the model is {self.settings.problem_type}; expected "
                "reranking"
            )
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"query is {described(query)}; expected a string with text")
        passages = check_strings("texts", texts)
        check_not_empty("texts", passages)
        count = len(passages) if top_k is None else check_count(top_k, "top_k")
        answers = self.predict(([query] * len(passages), passages), batch_size)
        self.report_truncation(answers["truncated"], "pairs")
        indices = np.argsort(-answers["logits"][:, 0], kind="stable")[:count]
        return indices, answers["score"][indices]

    def export_entries(self) -> dict[str, Any]:
        """Returns the entries of export.json for the labels, preprocessing and decoding."""
        entries = {"problem_type": self.problem_type_name, "labels": list(self.labels)}
        entries["pair"] = bool(self.settings.pair)
        if self.settings.thresholds:
            entries["thresholds"] = self.settings.thresholds
        if self._is_reranker:
            entries["activation"] = self.settings.activation
        return entries | super().export_entries()

    def example_request(self) -> dict[str, str]:
        """Returns the input strings of a warm-up request for a server."""
        return {name: self.example[name] for name in self.processor.input_names}

    @property
    def problem_type_name(self) -> str:
        """The problem type as transformers names it, such as `single_label_classification`."""
        return transformers_problem_type(self.settings.problem_type)

    def prepared_set(self, items: Texts, training: bool = False) -> PreparedSet:
        """Preprocesses the texts of a file, and converts their labels to numbers."""
        has_labels = items.labels is not None or len(items.columns) > 2
        kind = self.settings.problem_type
        array = label_array(items, kind, self.labels) if has_labels else None
        prepared = self._prepared(pair_columns(items.columns))
        return PreparedSet(labeled(prepared, array) if training else prepared, array, items)

    def score_outputs(self, evaluated: PreparedSet, outputs: Arrays) -> dict[str, float]:
        """Computes "loss", the metrics, and "score", the mean of the metrics."""
        answers = gathered(list(self._decoded(evaluated.prepared, outputs)))
        return self._with_mean(score(self.settings, answers, evaluated.labels))

    def write_predictions(
        self, path: Path, predicted: PreparedSet, outputs: Arrays, scores: Mapping[str, float]
    ) -> None:
        """Writes the predictions for a test set."""
        answers = gathered(list(self._decoded(predicted.prepared, outputs)))
        write_predictions(path, self.settings, predicted.items.indices, answers)
        logging.info("Wrote %d predictions to %s.tsv", len(predicted.items), path)

    def _with_mean(self, scores: Mapping[str, float]) -> dict[str, float]:
        # Groups of a reranker have no correlation.
        metrics = self.settings.metrics or DEFAULT_METRICS[self.settings.problem_type]
        values = [scores[name] for name in metrics if name in scores]
        return {**scores, "score": float(np.mean(values))}

    def saved_content(self) -> dict[str, Any]:
        """Returns what a saved model directory contains besides the weights.

        sentence-transformers opens the directory of a reranker as a CrossEncoder.
        """
        content = super().saved_content()
        if self._is_reranker:
            content["extra"] |= cross_encoder_entry(self.settings.activation)
        return content

    @property
    def _is_reranker(self) -> bool:
        return self.settings.problem_type == "reranking"

    def _saved_settings(self) -> dict[str, Any]:
        names = ("max_seq_length", "problem_type")
        names += ("pair",) if self.settings.pair is not None else ()
        names += ("thresholds",) if self.settings.thresholds else ()
        saved = {name: getattr(self.settings, name) for name in names}
        return saved | self.settings.long_text.to_dict()

    def _columns(
        self, texts: Any, name: str = "texts", has_labels: bool = True
    ) -> tuple[list[str], ...]:
        if self._is_reranker:
            return self._columns_of_reranker(texts, name, has_labels)
        columns = check_texts(name, texts, allow_pairs=True)
        if len(columns) == 2 and self.settings.long_text != TRUNCATED:
            raise InputError(
                f"{name} is a tuple of pairs, but long_text is "
                f"{self.settings.long_text.strategy!r}; expected single texts, or 'truncate'"
            )
        if len(columns) == 2 and self._model is not None:
            count = self.model.config.type_vocab_size
            if count < 2:
                raise InputError(
                    f"{name} is a tuple of pairs, but the model has type_vocab_size {count}; "
                    "expected single texts, or a model with 2 segments"
                )
        return columns

    def _columns_of_reranker(
        self, texts: Any, name: str, has_labels: bool
    ) -> tuple[list[str], ...]:
        """Returns columns of queries and passages; without labels, of positives and negatives."""
        texts = columns_of_tuples(name, texts)
        count = len(texts) if isinstance(texts, tuple) else 1
        if (count != 2) if has_labels else (count < 3):
            expected = "a tuple of two lists, of queries and passages, or a list of tuples of both"
            if not has_labels:
                expected = (
                    "labels, or without them a tuple of at least three lists, of queries, their "
                    "positives and negatives"
                )
            raise InputError(f"{name} is {described(texts)}; expected {expected}")
        columns = check_columns(name, texts)
        # A passage of a pair may be empty.
        for i, column in enumerate(columns[:1] if has_labels else columns):
            check_not_blank(f"{name}[{i}]", column)
        return columns

    def _label_array(
        self,
        labels: Any,
        columns: Sequence[Sequence[str]],
        names: tuple[str, str] = ("texts", "labels"),
    ) -> np.ndarray:
        """Checks labels and converts them to numbers, as `label_array` does."""
        if not self.is_export:
            _ = self.model  # Raises an error if the labels are not known yet.
        if len(columns) > 2:
            return group_labels(columns)
        items = check_list(names[1], labels, "labels")
        check_same_length(**{names[0]: columns[0], names[1]: items})
        return given_label_array(names[1], items, self.settings.problem_type, self.labels)

    # --- fine-tuning ---

    @classmethod
    def fine_tune(
        cls, classification: ClassificationSettings, run: FineTuningRun
    ) -> dict[str, object]:
        """Fine-tunes a classifier on files, or resumes an unfinished run.

        The best weights have the highest "score", the mean of the task's metrics.
        """
        settings = run.settings
        start = open_pretrained(settings)
        problem, splits = read_data(classification, start.labels, **settings.does)
        labels, problem_type = problem.labels, problem.problem_type
        first = splits.train or next(iter({**splits.dev, **splits.test}.values()))
        pair, length = first.second is not None, settings.max_seq_length
        if pair:
            start.check_segments()
        elif not settings.do_train and start.setting("pair", bool, None, takes_pairs(start)):
            raise InputError(
                f"--init_checkpoint={start.path}: was trained on pairs, got single texts; expected "
                "pairs; for files of your own, --columns with text_pair=NAME"
            )
        long_text = LongText.saved(start, classification.long_text, length)
        thresholds = () if settings.do_train else saved_thresholds(start)
        activation = saved_activation(start, problem_type)
        changes = {"long_text": long_text, "thresholds": thresholds, "activation": activation}
        made = replace(problem, max_seq_length=length, pair=pair, **changes)
        classifier = cls(None, start.tokenizer(), made)
        train, dev, test = prepare_sets(classifier, *splits)
        for each in dev.values() if labels else ():
            warn_of_absent_labels(each.items, each.labels, labels)
        weights: tuple[float, ...] = ()
        if train:
            setting = classification.class_weights
            weights = weights_of_classes(
                "--class_weights", setting, problem_type, labels, train.labels
            )
        size = train.prepared.examples.group_size if train else 1
        objective = ClassificationObjective(problem_type, weights, run.distillation, size)
        return run_fine_tuning(run, start, classifier, objective, train, dev, test, best="score")
