"""Defines QuestionAnswerer, the signatures of its exports, and fine-tuning on files."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.export.engines import NetworkSpec
from keras_bert.export.inputs import TOKEN_ID_SPECS, UnpaddedRows
from keras_bert.export.saved_model import Outputs, ServedTask, Steps
from keras_bert.files import write_json
from keras_bert.models import BertSpanLabeler
from keras_bert.tasks.checks import (
    check_not_empty,
    check_same_length,
    check_strings,
    check_validation_data,
    columns_of_tuples,
    errors_within,
    first_row,
    is_one_text,
    is_table,
    reject_dataset,
    split_examples,
    split_rows,
)
from keras_bert.tasks.fine_tuning import (
    FineTuningRun,
    open_pretrained,
    prepare_sets,
    run_fine_tuning,
)
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.prepared import Arrays, PreparedSet, Processor, gathered
from keras_bert.tasks.question_answering.data import (
    AnswerSettings,
    Question,
    SquadSettings,
    aligned,
    check_doc_stride,
    questions_of,
    read_data,
    scorable,
    trainable,
)
from keras_bert.tasks.question_answering.metrics import SpanObjective, score
from keras_bert.tasks.question_answering.processor import (
    Predictions,
    SpanProcessor,
    SpanWindows,
    labeled,
    texts_at,
)
from keras_bert.tasks.task import EXAMPLE_TEXT, Task
from keras_bert.text.tokenizer import BertTokenizer

# --- serving signatures ---

_LOGITS = ("start_logits", "end_logits")


class ServedQuestionAnswering(ServedTask):
    """The SavedModel signatures of question answering."""

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec(dict.fromkeys(_LOGITS, "token"))

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")]
        return {
            "serving_default": Steps(texts, self.processor.preprocess, self._answers),
            "token_ids": Steps(TOKEN_ID_SPECS, self.unpadded, self._logits),
        }

    def _answers(self, outputs: Outputs, inputs: SpanWindows) -> dict[str, tf.Tensor]:
        """Returns the outputs of `SpanProcessor.decode`, with scores in float32."""
        return {
            name: tf.cast(value, tf.float32) if value.dtype.is_floating else value
            for name, value in self.processor.decode(outputs, inputs).items()
        }

    def _logits(self, outputs: Outputs, rows: UnpaddedRows) -> dict[str, tf.Tensor]:
        """Returns the logits of the tokens of each window, [B, S] each, which are 0 at padding."""
        logits = {name: rows.padded(outputs[name]) for name in _LOGITS}
        return {**logits, "truncated": rows.truncated}


class QuestionAnswerer(Task):
    """Answers questions with spans of their contexts.

    Example:
        answerer = QuestionAnswerer.from_pretrained("out/squad")
        answerer.predict("Who swore fealty?", "Rollo swore fealty to King Charles.")["answer"]

    Args:
        model: a BertSpanLabeler.
        tokenizer: the tokenizer for the model's vocabulary.
        settings: window and answer lengths, number of candidates, and threshold.
    """

    task: ClassVar[str] = "question_answering"
    settings_class: ClassVar[type] = AnswerSettings
    model_class: ClassVar[type[keras.Model]] = BertSpanLabeler
    processor_class: ClassVar[type[Processor]] = SpanProcessor
    served_class: ClassVar[type[ServedTask]] = ServedQuestionAnswering
    example: ClassVar[Mapping[str, str]] = {
        "question": "Who had an impact on Europe?",
        "context": EXAMPLE_TEXT,
    }
    argument_names: ClassVar[tuple[str, ...]] = ("question", "context")
    limit: ClassVar[str] = "max_query_length"
    items_name: ClassVar[str] = "questions"
    export_options: ClassVar[tuple[str, ...]] = tuple(f.name for f in fields(AnswerSettings))
    optional_weights: ClassVar[tuple[str, ...]] = ("encoder/pooler",)

    settings: AnswerSettings
    processor: SpanProcessor

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
        **settings: Any,
    ) -> "QuestionAnswerer":
        """Loads a fine-tuned span labeler, or adds a new span head to a pre-trained model.

        Args:
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset, or the name of a
                model on the Hugging Face Hub, such as "bert-base-uncased".
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".
            **settings: fields of AnswerSettings; by default the values used in training, or the
                defaults of AnswerSettings.

        Raises:
            InputError: the path cannot be opened, the model is of another task or has only one
                segment, or a setting is out of range.
        """
        return cls._open(path, tokenizer=tokenizer, dtype=dtype, **settings)

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: Checkpoint, **settings: Any) -> AnswerSettings:
        """Returns the settings: the arguments, or else those of the model, or else of its run.

        A setting that none of them has takes the default of AnswerSettings.
        """
        names = [field.name for field in fields(AnswerSettings)]
        unknown = sorted(set(settings) - set(names))
        if unknown:
            raise InputError(
                f"{cls.__name__} got unknown settings {', '.join(unknown)}; expected any "
                f"of {', '.join(names)}"
            )
        checkpoint.check_segments()
        values = {"null_score_diff_threshold": None, **settings}
        for name in names:
            default, value = getattr(AnswerSettings, name), settings.get(name)
            if name == "max_seq_length":
                values[name] = checkpoint.max_seq_length(value, default)
            elif default is not None:
                values[name] = checkpoint.setting(name, type(default), value, default)
        name = "null_score_diff_threshold"
        if values[name] is None and values["version_2_with_negative"]:
            values[name] = checkpoint.setting(name, float, None)
            if values[name] is None:
                values[name] = checkpoint.run.threshold()
        answers = AnswerSettings(**values)
        if settings.get("doc_stride") is not None:
            check_doc_stride(answers.doc_stride, answers.max_seq_length)
        return answers

    def fit(
        self,
        questions: Any,
        contexts: Any = None,
        answers: Any = None,
        *,
        text: tuple[str, str] = ("question", "context"),
        label: str = "answers",
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "QuestionAnswerer | None" = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model on one device and returns the history, as `keras.Model.fit` does.

        Example:
            context = "Rollo swore fealty to King Charles."
            answerer.fit(["Who swore fealty?"], [context], [{"text": "Rollo", "start": 0}])

        Args:
            questions: n strings: a list, or a column of NumPy, pandas, Arrow or `datasets`. Or a
                table with all three, as for `TextClassifier.fit`, but not a tf.data.Dataset.
            contexts: n strings, the context of each question, or one string for all.
            answers: n answers {"text": str, "start": int}: a slice of the context and its character
                offset, which may also have SQuAD's name "answer_start". If an item is a list of
                answers, or {"text": [...], "answer_start": [...]}, the first one is used. None, or
                no answer in a list, means that the context has no answer: the model then also
                predicts that (`version_2_with_negative`).
            text: the names of the table's columns of questions and contexts.
            label: the name of the table's column of answers.
            validation_data: ((questions, contexts), answers) or a table, evaluated after each
                epoch; the logs contain the scores as `val_exact`, `val_f1` and so on. The highest
                F1 (`best_f1`, if questions may have no answer) determines the best weights.
            callbacks: Keras callbacks.
            teacher: a trained QuestionAnswerer with the same vocabulary, whose outputs the model
                learns in addition (distillation). The options distillation_weight and temperature
                belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.

        Raises:
            InputError: an argument is invalid, such as an answer that is not in its context.
        """
        settings, distillation = self._check_fit(options, validation_data, teacher)
        checked = _questions(questions, contexts, answers, text, label)
        scored: list[Question] = []
        if settings.validation_split:
            (checked,), (scored,) = split_rows(settings.validation_split, settings.seed, checked)
        if validation_data is not None:
            reject_dataset("validation_data", validation_data)
            expected = "((questions, contexts), answers)"
            asked, gold = check_validation_data(validation_data, expected, text, label)
            held_out = (*check_validation_data(asked, expected, text, label), gold)
            with errors_within("validation_data"):
                scored = _questions(*held_out, text, label)
            check_not_empty("validation_data", scored)
        evaluate = None
        if scored:
            dev = self.prepared_set(scored)
            self.report_truncation(dev.prepared.truncated, "validation questions")
            evaluate = functools.partial(self._evaluate, dev)
        matches = [aligned(question) for question in checked]
        for index, match in enumerate(matches):
            if match is None:
                answer = checked[index].answers[0]
                raise InputError(
                    f"answers[{index}] is {answer.text[:60]!r} at {answer.start}; expected a text "
                    f"at this offset of contexts[{index}]"
                )
        if not all(question.answers for question in [*checked, *scored]):
            self._replace_settings(version_2_with_negative=True)
        train, best = self.prepared_set(matches, training=True).prepared, self._best_metric
        objective = SpanObjective(distillation)
        return fit_task(self, train, objective, settings, evaluate, callbacks, best, teacher)

    def evaluate(
        self,
        questions: Any,
        contexts: Any = None,
        answers: Any = None,
        batch_size: int = 32,
        *,
        text: tuple[str, str] = ("question", "context"),
        label: str = "answers",
    ) -> dict[str, float]:
        """Computes the official SQuAD scores of the model.

        The data and the names of columns are given as for `fit`. If an item of `answers` has
        several answers, the one that matches best counts. `batch_size` is the number of windows per
        batch.

        Returns:
            "exact" and "f1" in percent. If questions may have no answer, also the scores of
                questions with and without answer ("HasAns_f1", "NoAns_f1" and so on), and the best
                thresholds of the null odds.

        Raises:
            InputError: an argument is invalid, or there are no questions.
        """
        checked = _questions(questions, contexts, answers, text, label)
        if not checked:
            raise InputError("evaluate() got no questions; expected at least one")
        for index, question in enumerate(checked):
            if not question.answers and not self.settings.version_2_with_negative:
                raise InputError(
                    f"answers[{index}] has no answer; expected one, or a model for questions "
                    "without answer: fit() with such questions, or version_2_with_negative=True"
                )
        columns = [[q.text for q in checked], [q.context for q in checked]]
        outputs = gathered(list(self._answers(columns, batch_size)))
        self.report_truncation(outputs.get("truncated"), "questions")
        return score(Predictions(checked, outputs), self.settings)

    def predict(
        self,
        questions: Any,
        contexts: Any = None,
        batch_size: int = 32,
        *,
        text: tuple[str, str] = ("question", "context"),
    ) -> dict[str, Any]:
        """Answers questions.

        Args:
            questions: n strings, or a table with their contexts; or one string for all contexts.
            contexts: n strings of any length, the context of each question; or one string for all.
            batch_size: number of windows per batch.
            text: the names of the table's columns of questions and contexts.

        Returns:
            The values of one answer for two strings, or arrays for n questions:
            "answer" [n]: slices of the contexts that consist of complete words, or "" for no
                answer.
            "start" and "end" [n]: the character offsets of the answer in its context, or -1.
            "score" [n]: start logit + end logit of the best text, even if the answer is ""; for a
                context without candidates, "null_score".
            "null_score" [n]: the score of "no answer". The null odds are "null_score" - "score".
            "truncated" [n]: whether the question was truncated to `max_query_length` tokens.
                Contexts are never truncated, but split into windows.
            "nbest_answers", "nbest_starts", "nbest_ends", "nbest_probabilities",
                "nbest_start_logits" and "nbest_end_logits" [n, candidates]: candidates with
                different texts, best first, padded with "", -1 and 0. If questions may have no
                answer, "" is one more candidate, with the offsets -1.
        """
        if is_one_text("questions", questions) and is_one_text("contexts", contexts):
            return first_row(self.predict([questions], [contexts], batch_size))
        columns, _ = _split(questions, contexts, None, text, None)
        questions, contexts = _columns(*columns)
        outputs = gathered(list(self._answers([questions, contexts], batch_size)))
        outputs = {
            name: values.astype(np.float32) if values.dtype == np.float64 else values
            for name, values in outputs.items()
        }
        # Slice the given strings: they may contain characters that UTF-8 cannot encode.
        outputs["answer"] = texts_at(contexts, outputs["start"], outputs["end"])
        outputs["nbest_answers"] = texts_at(
            contexts, outputs["nbest_starts"], outputs["nbest_ends"]
        )
        return outputs

    def export_entries(self) -> dict[str, Any]:
        """Returns the entries of export.json for preprocessing and decoding."""
        return asdict(self.settings)

    def prepared_set(self, items: Sequence[Question], training: bool = False) -> PreparedSet:
        """Splits questions with their contexts into windows."""
        prepared = self._prepared([[q.text for q in items], [q.context for q in items]])
        return PreparedSet(labeled(prepared, items) if training else prepared, items=items)

    def score_outputs(self, evaluated: PreparedSet, outputs: Arrays) -> dict[str, float]:
        """Computes the official SQuAD scores of questions."""
        return score(self._predictions(evaluated, outputs), self.settings)

    def write_predictions(
        self, path: Path, predicted: PreparedSet, outputs: Arrays, scores: Mapping[str, float]
    ) -> None:
        """Writes predictions.json, nbest_predictions.json, and for v2.0 null_odds.json.

        Without a threshold in the settings, other questions than the development questions use the
        threshold with the best F1 on those.
        """
        version_2 = self.settings.version_2_with_negative
        threshold = scores.get("null_score_diff_threshold", self.settings.threshold)
        if version_2:
            logging.info(
                "Questions whose null odds (score of no answer minus score of the best answer) are "
                "above %.4f get the empty answer",
                threshold,
            )
        predictions = self._predictions(predicted, outputs)
        write_json(path.with_name("predictions.json"), predictions.answers(threshold))
        write_json(path.with_name("nbest_predictions.json"), predictions.n_best(version_2))
        if version_2:
            write_json(path.with_name("null_odds.json"), predictions.null_odds)

    @property
    def _best_metric(self) -> str:
        return "best_f1" if self.settings.version_2_with_negative else "f1"

    def _predictions(self, questions: PreparedSet, outputs: Arrays) -> Predictions:
        answers = gathered(list(self._decoded(questions.prepared, outputs)))
        return Predictions(questions.items, answers)

    # --- fine-tuning ---
    # training questions -> windows with answer positions -----------------> training examples
    # dev questions -> windows -> logits -> candidates -> texts -----------> official scores
    # test questions -> windows -> logits -> candidates -> texts ----------> predictions.json, ...

    @classmethod
    def fine_tune(cls, squad: SquadSettings, run: FineTuningRun) -> dict[str, object]:
        """Fine-tunes a span labeler on files, or resumes an unfinished run.

        The `max_seq_length` of the run is the window length.
        """
        settings = run.settings
        squad = replace(
            squad, answers=replace(squad.answers, max_seq_length=settings.max_seq_length)
        )
        start = open_pretrained(settings)
        start.check_segments()
        train, dev, test = read_data(squad, **settings.does)
        answerer = cls(None, start.tokenizer(), squad.answers)
        train = train and trainable(train, squad)
        dev = {suffix: scorable(each, squad, "development") for suffix, each in dev.items()}
        train, dev, test = prepare_sets(answerer, train, dev, test)
        if train:
            count = len(train.prepared.examples)
            logging.info("Training on %d questions in %d windows", len(train.items), count)
        objective, best = SpanObjective(run.distillation), answerer._best_metric
        return run_fine_tuning(run, start, answerer, objective, train, dev, test, best)


def _questions(
    questions: Any, contexts: Any, answers: Any, text: tuple[str, str], label: str
) -> list[Question]:
    """Checks the arguments of `fit`, and returns the questions with their answers."""
    columns, answers = _split(questions, contexts, answers, text, label)
    return questions_of(*_columns(*columns), answers)


def _split(
    questions: Any, contexts: Any, answers: Any, text: tuple[str, str], label: str | None
) -> tuple[tuple[Any, Any], Any]:
    """Returns ((questions, contexts), answers), which may all be columns of `questions`."""
    reject_dataset("questions", questions)
    if not is_table(questions):
        return (questions, contexts), answers
    targets = answers if contexts is None else contexts
    columns, answers = split_examples("questions", questions, targets, text, label)
    columns = columns_of_tuples("questions", columns)
    if not isinstance(columns, tuple) or len(columns) != 2:
        raise InputError("questions has one column of texts; expected questions and contexts")
    return columns, answers


def _columns(questions: Any, contexts: Any) -> tuple[list[str], list[str]]:
    """Checks questions and contexts; one string on either side is repeated for all of the other."""
    if is_one_text("contexts", contexts) and not is_one_text("questions", questions):
        questions = check_strings("questions", questions)
        contexts = [contexts] * len(questions)
    contexts = check_strings("contexts", contexts)
    if is_one_text("questions", questions):
        questions = [questions] * len(contexts)
    questions = check_strings("questions", questions)
    check_same_length(questions=questions, contexts=contexts)
    return questions, contexts
