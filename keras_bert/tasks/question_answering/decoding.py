"""Logits of windows -> answers: the best spans of each question as texts, best first.

    start, end logits [T] -> per window the best spans (arrays) -> per question all of them, sorted
    -> texts of the context, each once -> predictions.json, nbest_predictions.json, null_odds.json

A span starts and ends on pieces of the context, starts where its window is the one of max context,
and has at most `max_answer_length` pieces; its score is start + end logit. That no answer is there
scores as the span ([CLS], [CLS]) of the window that likes it least.

n windows, S pieces of the longest, T pieces in all, K spans kept a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert.tasks.question_answering.questions import Question
from keras_bert.tasks.question_answering.windows import Windows, max_context

# Null odds of a question whose windows hold no piece of context: silence, whatever the threshold.
NO_CANDIDATE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Candidate:
    """A possible answer; the empty text says that the context does not tell."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Start plus end logit."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Decoded:
    """The candidates of a question, best first and none empty, and the one of no answer."""

    candidates: Sequence[Candidate]
    null: Candidate

    @property
    def best_text(self) -> str:
        """The best text there is, whatever the null odds; empty without candidates."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def null_odds(self) -> float:
        """How much higher no answer scores than the best text."""
        return self.null.score - self.candidates[0].score if self.candidates else NO_CANDIDATE

    def answer(self, threshold: float | None) -> str:
        """Chooses the answer.

        Args:
            threshold: null odds above it give the empty answer; None never does.

        Returns:
            A slice of the context, or "".
        """
        return "" if threshold is not None and self.null_odds > threshold else self.best_text


def decode(
    questions: Sequence[Question],
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    chunk: int = 1000,
) -> list[Decoded]:
    """Finds the best answers to questions.

    Args:
        questions: Q of them.
        windows: of those questions.
        start_logits: [T], a value for each piece of the windows.
        end_logits: [T].
        n_best_size: candidates a question, of different texts.
        max_answer_length: pieces an answer may have.
        chunk: windows worked on at once, which bounds the memory.

    Returns:
        The candidates of each question.
    """
    starts = windows.examples.starts
    allowed = max_context(windows)
    parts = [
        _window_spans(windows, allowed, start_logits, end_logits, w, n_best_size, max_answer_length)
        for w in _chunks(len(windows.question), chunk)
    ]
    window, first, last = (
        np.concatenate([part[i] for part in parts] or [np.zeros([0], np.int64)]) for i in range(3)
    )
    start_logit, end_logit = (
        np.asarray(logits, np.float64)[starts[window] + place]
        for logits, place in ((start_logits, first), (end_logits, last))
    )
    # By question, the highest score first; equals stay as their windows and places are.
    order = np.lexsort([-(start_logit + end_logit), windows.question[window]])
    window, first, last = window[order], first[order], last[order]
    to_piece = windows.first_piece[window] - windows.context_at[window]
    begins = windows.piece_starts[to_piece + first].tolist()
    ends = windows.piece_ends[to_piece + last].tolist()
    start_logit, end_logit = start_logit[order].tolist(), end_logit[order].tolist()
    bounds = np.searchsorted(windows.question[window], np.arange(len(questions) + 1)).tolist()

    nulls = _nulls(windows, start_logits, end_logits, len(questions))
    decoded = []
    for i, question in enumerate(questions):
        found: dict[str, Candidate] = {}
        for j in range(bounds[i], bounds[i + 1]):
            text = question.context[begins[j] : ends[j]]
            if text not in found:
                found[text] = Candidate(text, start_logit[j], end_logit[j])
                if len(found) == n_best_size:
                    break
        decoded.append(Decoded(list(found.values()), nulls[i]))
    return decoded


def predictions_of(
    questions: Sequence[Question], decoded: Sequence[Decoded], threshold: float | None
) -> dict[str, str]:
    """Lists the answers as predictions.json has them.

    Args:
        questions: Q of them.
        decoded: their candidates.
        threshold: null odds above it give the empty answer; None never does (v1.1).

    Returns:
        {question id: text}.
    """
    return {q.id: d.answer(threshold) for q, d in zip(questions, decoded, strict=True)}


def null_odds_of(questions: Sequence[Question], decoded: Sequence[Decoded]) -> dict[str, float]:
    """Lists the null odds as null_odds.json has them.

    Args:
        questions: Q of them.
        decoded: their candidates.

    Returns:
        {question id: score of no answer minus score of the best text}.
    """
    return {q.id: d.null_odds for q, d in zip(questions, decoded, strict=True)}


def n_best_of(
    questions: Sequence[Question], decoded: Sequence[Decoded], with_null: bool
) -> dict[str, list[dict[str, object]]]:
    """Lists the candidates as nbest_predictions.json has them.

    Args:
        questions: Q of them.
        decoded: their candidates.
        with_null: whether the empty answer is a candidate too (v2.0).

    Returns:
        {question id: [{"text", "probability", "start_logit", "end_logit"}]}, best first; the
        probabilities of a question sum to 1.
    """
    return {
        question.id: list(_entries(each, with_null))
        for question, each in zip(questions, decoded, strict=True)
    }


def _entries(decoded: Decoded, with_null: bool) -> Iterator[Mapping[str, object]]:
    candidates = list(decoded.candidates)
    if with_null or not candidates:
        candidates = sorted([*candidates, decoded.null], key=lambda c: -c.score)
    scores = np.array([candidate.score for candidate in candidates])
    shares = np.exp(scores - scores.max())
    for candidate, probability in zip(candidates, (shares / shares.sum()).tolist(), strict=True):
        yield {
            "text": candidate.text,
            "probability": probability,
            "start_logit": candidate.start_logit,
            "end_logit": candidate.end_logit,
        }


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _window_spans(
    windows: Windows,
    allowed: np.ndarray,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    chosen: slice,
    n_best_size: int,
    max_answer_length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the best spans of some windows: window, first and last place in it, each [spans]."""
    starts = windows.examples.starts[chosen.start : chosen.stop + 1]
    lengths = np.diff(starts)[:, None]
    places = np.arange(lengths.max())
    inside = places < lengths
    start, end = (np.full(inside.shape, -np.inf) for _ in range(2))
    part = slice(starts[0], starts[-1])
    start[inside] = np.where(allowed[part], start_logits[part], -np.inf)
    end[inside] = end_logits[part]
    end[(places < windows.context_at[chosen][:, None]) | (places >= lengths - 1)] = -np.inf
    end = np.pad(end, [(0, 0), (0, max_answer_length - 1)], constant_values=-np.inf)

    # The K best spans start at no more than K places: those whose own best span is best.
    best = end[:, : len(places)].copy()
    for i in range(1, max_answer_length):
        np.maximum(best, end[:, i : i + len(places)], out=best)
    first = np.sort(_largest(start + best, n_best_size), axis=1)  # [n, K]
    rows = np.arange(len(first))[:, None]
    last = first[..., None] + np.arange(max_answer_length)  # [n, K, max_answer_length]
    scores = start[rows, first][..., None] + end[rows[..., None], last]
    # More than are asked for, since spans of one text count once.
    spans = np.sort(_largest(scores.reshape(len(first), -1), 3 * n_best_size), axis=1)
    row, kept = np.nonzero(np.take_along_axis(scores.reshape(len(first), -1), spans, 1) > -np.inf)
    span = spans[row, kept]
    first = first[row, span // max_answer_length]
    return row + chosen.start, first, first + span % max_answer_length


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns where the `count` largest values of each row are, in no order."""
    count = min(count, values.shape[1])
    return np.argpartition(-values, count - 1, axis=1)[:, :count]


def _nulls(
    windows: Windows, start_logits: np.ndarray, end_logits: np.ndarray, count: int
) -> list[Candidate]:
    """Returns the empty candidate of each question, from its window that likes it least."""
    places = windows.examples.starts[:-1]
    start, end = (np.asarray(logits, np.float64)[places] for logits in (start_logits, end_logits))
    order = np.lexsort([start + end, windows.question])
    least = order[np.searchsorted(windows.question[order], np.arange(count))]
    return [Candidate("", *logits) for logits in np.stack([start, end], 1)[least].tolist()]
