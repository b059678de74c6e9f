"""Converts decoded answers to texts, and to the contents of SQuAD prediction files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert.tasks.question_answering.questions import Question


@dataclass(frozen=True, eq=False)
class Predictions:
    """Some questions, and the outputs of `SpanProcessor.decode` for them, as arrays."""

    questions: Sequence[Question]
    outputs: Mapping[str, np.ndarray]

    @property
    def null_odds(self) -> dict[str, float]:
        """{question id: score of "no answer" - score of the best text}, as in null_odds.json."""
        odds = self.outputs["null_score"] - self.outputs["score"]
        return {q.id: value for q, value in zip(self.questions, odds.tolist(), strict=True)}

    @property
    def best_texts(self) -> dict[str, str]:
        """{question id: text of the best candidate other than "no answer", or "" without any}."""
        starts, ends = self.outputs["nbest_starts"], self.outputs["nbest_ends"]
        # If the best candidate is "no answer", the best text is the candidate after it.
        best = (starts >= 0).argmax(axis=1)
        rows = np.arange(len(starts))
        return {
            q.id: text_at(q.context, start, end)
            for q, start, end in zip(
                self.questions, starts[rows, best].tolist(), ends[rows, best].tolist(), strict=True
            )
        }

    def answers(self, threshold: float | None) -> dict[str, str]:
        """Returns {question id: answer}, as in predictions.json.

        A question whose null odds are above the threshold gets the empty answer. In v1.1, the
        threshold is None.
        """
        texts = self.best_texts
        if threshold is None:
            return texts
        odds = self.null_odds
        return {name: "" if odds[name] > threshold else text for name, text in texts.items()}

    def n_best(self, with_null: bool) -> dict[str, list[dict[str, object]]]:
        """Returns {question id: candidates, best first}, as in nbest_predictions.json.

        A candidate is {"text", "probability", "start_logit", "end_logit"}; the probabilities of a
        question sum to 1. If `with_null` is set (v2.0), "no answer" is a candidate of every
        question.
        """
        found = (self.outputs["nbest_starts"] >= 0).sum(axis=1)
        counts = found + 1 if with_null else np.maximum(found, 1)
        names = ("starts", "ends", "probabilities", "start_logits", "end_logits")
        columns = [self.outputs[f"nbest_{name}"].tolist() for name in names]
        return {
            question.id: [
                {
                    "text": text_at(question.context, start, end),
                    "probability": probability,
                    "start_logit": start_logit,
                    "end_logit": end_logit,
                }
                for start, end, probability, start_logit, end_logit in zip(
                    *(values[:count] for values in rows), strict=True
                )
            ]
            for question, count, *rows in zip(
                self.questions, counts.tolist(), *columns, strict=True
            )
        }


def text_at(context: str, start: int, end: int) -> str:
    """Returns `context[start:end]`, or "" if `start` is -1, which means no answer."""
    return context[start:end] if start >= 0 else ""


def texts_at(contexts: Sequence[str], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns slices of the contexts at character offsets; "" where a start is -1.

    `starts` and `ends` are integers [n], or [n, K] for K slices of each of n contexts. The result
    has the same shape.
    """
    texts = np.empty(starts.shape, object)
    for index in np.ndindex(starts.shape):
        texts[index] = text_at(contexts[index[0]], int(starts[index]), int(ends[index]))
    return texts
