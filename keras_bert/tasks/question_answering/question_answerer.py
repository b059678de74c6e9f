"""Defines QuestionAnswerer, which answers questions with spans of given contexts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, ClassVar, Unpack

import keras
import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.models import BertSpanLabeler
from keras_bert.serving.network import Network
from keras_bert.tasks.checks import check_not_empty, check_same_length, check_strings
from keras_bert.tasks.fitting import FitData, FitOptions
from keras_bert.tasks.loading import ModelOptions, Source
from keras_bert.tasks.losses import span_loss
from keras_bert.tasks.prepared import gathered
from keras_bert.tasks.question_answering.labels import (
    prepare_questions,
    span_targets,
    training_examples,
)
from keras_bert.tasks.question_answering.objective import ENDS
from keras_bert.tasks.question_answering.predictions import Predictions, texts_at
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.questions import (
    Question,
    questions_of,
    trainable_questions,
)
from keras_bert.tasks.question_answering.scoring import score
from keras_bert.tasks.question_answering.served import ServedQuestionAnswering
from keras_bert.tasks.question_answering.settings import (
    AnswerOptions,
    AnswerSettings,
    answer_settings,
)
from keras_bert.tasks.task import Task
from keras_bert.tasks.truncation import report_truncation
from keras_bert.text.tokenizer import BertTokenizer

_CONTEXT = "The Norman dynasty had a major impact on medieval Europe."
_QUESTION = "Who had an impact on Europe?"
_DEFAULT = ModelOptions()


class QuestionAnswerer(Task):
    """Answers questions with spans of their contexts.

    Example:
        answerer = QuestionAnswerer.from_pretrained("out/squad")
        answerer.predict(["Who swore fealty?"], ["Rollo swore fealty to King Charles."])["answer"]

    Args:
        model: a BertSpanLabeler.
        tokenizer: the tokenizer for the model's vocabulary.
        settings: window and answer lengths, number of candidates, and threshold.
    """

    task: ClassVar[str] = "question_answering"
    input_names: ClassVar[tuple[str, ...]] = ("question", "context")
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
        **settings: Unpack[AnswerOptions],
    ) -> "QuestionAnswerer":
        """Loads a fine-tuned span labeler, or adds a new span head to a pre-trained model.

        Args:
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset.
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".
            **settings: fields of AnswerSettings; by default the values used in training, or the
                defaults of AnswerSettings.

        Raises:
            InputError: the path cannot be opened, the model is of another task or has only one
                segment, or a setting is out of range.
        """
        source = Source.open(path)
        source.check_heads(cls.task, cls.__name__)
        return cls.from_source(source, options=ModelOptions(tokenizer, dtype), **settings)

    @classmethod
    def from_source(
        cls,
        source: Source,
        *,
        options: ModelOptions = _DEFAULT,
        **settings: Unpack[AnswerOptions],
    ) -> "QuestionAnswerer":
        """Creates the question answerer from an open checkpoint, as `from_pretrained` does."""
        known = [field.name for field in fields(AnswerSettings)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} got unknown settings {', '.join(unknown)}; expected any "
                f"of {', '.join(known)}"
            )
        source.checkpoint.check_segments()
        model = BertSpanLabeler(source.checkpoint.config, dtype=options.dtype)
        tokenizer = source.tokenizer(options.tokenizer)
        return cls._load(source, model, tokenizer, answer_settings(source, settings))

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> AnswerSettings:
        """Returns the settings recorded in an export's export.json."""
        names = [field.name for field in fields(AnswerSettings)]
        known = {name: info[name] for name in names if name in info}
        # Earlier exports use the name "version_2", and have a threshold in v1.1 too.
        known.setdefault("version_2_with_negative", bool(info.get("version_2")))
        if not known["version_2_with_negative"]:
            known["null_score_diff_threshold"] = None
        return AnswerSettings(**known)

    def fit(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        answers: Sequence[Mapping[str, Any] | None],
        *,
        validation_data: tuple[Any, Sequence[Any]] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "QuestionAnswerer | None" = None,
        **options: Unpack[FitOptions],
    ) -> keras.callbacks.History:
        """Trains the model with `keras.Model.fit` on one device and returns its history.

        Args:
            questions: n strings.
            contexts: n strings, the context of each question.
            answers: n answers {"text": str, "start": int}: a slice of the context and its character
                offset. None means no answer and needs `version_2_with_negative`. If an item is a
                list of answers, the first one is used.
            validation_data: ((questions, contexts), answers), evaluated after each epoch; the logs
                contain the scores as `val_exact`, `val_f1` and so on.
            callbacks: Keras callbacks.
            teacher: a trained QuestionAnswerer with the same vocabulary, whose outputs the model
                learns in addition (distillation). The options distillation_weight and temperature
                belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.

        Raises:
            InputError: an argument is invalid, such as an answer that is not in its context.
        """
        self._check_fit(options, teacher)
        checked = self._questions(questions, contexts, answers)
        evaluate = None
        if validation_data is not None:
            held_out = _triple_of(validation_data)
            check_not_empty("validation_data", self._questions(*held_out))
            evaluate = lambda: self.evaluate(*held_out)  # noqa: E731
        trainable = trainable_questions(checked)
        prepared = prepare_questions(self.processor, trainable)
        self._report_truncation(prepared.truncated, "training questions")
        data = FitData(
            examples=training_examples(prepared, trainable),
            targets=span_targets,
            losses={f"{end}_logits": span_loss for end in ENDS},
            metrics={},
            pad_token_id=self.tokenizer.pad_token_id,
            max_seq_length=self.settings.max_seq_length,
            frozen=(self.model.encoder.pooler,),
            soft_kind="positions",
        )
        return self._fit(data, options, evaluate, callbacks, teacher)

    def evaluate(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        answers: Sequence[Mapping[str, Any] | Sequence[Mapping[str, Any]] | None],
        batch_size: int = 32,
    ) -> dict[str, float]:
        """Computes the official SQuAD scores of the model.

        The first three arguments are as for `fit`. If an item of `answers` is a list, the answer
        that matches best counts. `batch_size` is the number of windows per batch.

        Returns:
            "exact" and "f1" in percent. If questions may have no answer, also the scores of
                questions with and without answer ("HasAns_f1", "NoAns_f1" and so on), and the best
                thresholds of the null odds.

        Raises:
            InputError: an argument is invalid, or there are no questions.
        """
        checked = self._questions(questions, contexts, answers)
        if not checked:
            raise InputError("evaluate() got no questions; expected at least one")
        columns = [[q.text for q in checked], [q.context for q in checked]]
        outputs = gathered(list(self._answers(columns, batch_size)))
        # Exports of earlier versions do not have this output.
        self._report_truncation(outputs.get("truncated", np.zeros(len(checked))), "questions")
        return score(Predictions(checked, outputs), self.settings)

    def predict(
        self, questions: Sequence[str], contexts: Sequence[str], batch_size: int = 32
    ) -> dict[str, np.ndarray]:
        """Answers questions.

        Args:
            questions: n strings.
            contexts: n strings of any length, the context of each question.
            batch_size: number of windows per batch.

        Returns:
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
        questions, contexts = _columns(questions, contexts)
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

    def make_processor(self) -> SpanProcessor:
        """Creates the processor for the current settings."""
        return SpanProcessor(self.tokenizer, self.settings)

    def served(self, network: Network) -> tf.Module:
        """Creates the tf.Module whose signatures are exported."""
        return ServedQuestionAnswering(network, self.processor)

    def text_settings(self) -> dict[str, Any]:
        """Returns the entries of export.json that describe preprocessing and decoding."""
        return asdict(self.settings)

    def example_request(self) -> dict[str, str]:
        """Returns the input strings of a warm-up request for a server."""
        return {"question": _QUESTION, "context": _CONTEXT}

    def _report_truncation(self, truncated: np.ndarray, questions: str) -> None:
        limit = f"max_query_length={self.settings.max_query_length}"
        report_truncation(truncated, questions, limit)

    def _questions(self, questions: Any, contexts: Any, answers: Any) -> list[Question]:
        questions, contexts = _columns(questions, contexts)
        checked = questions_of(questions, contexts, answers)
        for index, question in enumerate(checked):
            if not question.answers and not self.settings.version_2_with_negative:
                raise InputError(
                    f"answers[{index}] is {answers[index]!r}; expected an answer, or "
                    "version_2_with_negative=True for questions without answer"
                )
        return checked


def _columns(questions: Any, contexts: Any) -> tuple[list[str], list[str]]:
    questions = check_strings("questions", questions)
    contexts = check_strings("contexts", contexts)
    check_same_length(questions=questions, contexts=contexts)
    return questions, contexts


def _triple_of(value: Any) -> tuple[Any, Any, Any]:
    """Splits `validation_data` into questions, contexts and answers."""
    is_nested = isinstance(value, tuple | list) and len(value) == 2
    if not is_nested or not isinstance(value[0], tuple | list) or len(value[0]) != 2:
        raise InputError(
            f"validation_data is {value!r:.60}; expected ((questions, contexts), answers)"
        )
    return (*value[0], value[1])
