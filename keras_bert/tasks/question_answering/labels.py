"""Labels windows with the positions of the first and last token of the answer."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.prepared import Prepared, prepare
from keras_bert.tasks.question_answering.objective import ENDS
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.questions import Question
from keras_bert.tasks.question_answering.span_windows import SpanWindows


def prepare_questions(processor: SpanProcessor, questions: Sequence[Question]) -> Prepared:
    """Splits each question with its context into one or more windows."""
    columns = [[q.text for q in questions], [q.context for q in questions]]
    return prepare(processor.preprocess, columns, tokenizer=processor.tokenizer)


def training_examples(prepared: Prepared, questions: Sequence[Question]) -> Examples:
    """Labels the windows of `prepare_questions` with the first answer of each question.

    The labels are `start_positions` and `end_positions`, int32 [n].
    """
    parts = [np.zeros([0, 2], np.int32)]
    first = 0
    for chunk in prepared.chunks:
        count = len(chunk.inputs.context_of)
        parts.append(span_positions(chunk.inputs, questions[first : first + count]))
        first += count
    start, end = np.concatenate(parts).T.copy()
    return dataclasses.replace(
        prepared.examples, labels={"start_positions": start, "end_positions": end}
    )


def span_positions(windows: SpanWindows, questions: Sequence[Question]) -> np.ndarray:
    """Returns the positions of the answer's first and last token in each window, int32 [n, 2].

    The answer's tokens are all tokens that contain at least one of its characters. Both positions
    are 0, the position of [CLS], in a window that lacks any of these tokens, and in every window of
    a question without answer. `windows` must have eager tensors.
    """
    context_of, splits = windows.context_of.numpy(), windows.token_starts.row_splits.numpy()
    starts, ends = windows.token_starts.values.numpy(), windows.token_ends.values.numpy()
    spans = np.full([len(questions), 2], -1, np.int64)
    for i, question in enumerate(questions):
        if not question.answers:
            continue
        first, last = splits[context_of[i]], splits[context_of[i] + 1]
        answer = question.answers[0]
        begin = _byte_offset(question.context, answer.start)
        end = _byte_offset(question.context, answer.start + len(answer.text))
        spans[i] = (
            first + np.searchsorted(ends[first:last], begin, side="right"),
            first + np.searchsorted(starts[first:last], end, side="left") - 1,
        )
    spans = spans[windows.question.numpy()]
    in_window = spans - windows.first_token.numpy()[:, np.newaxis]
    inside = (spans[:, 0] >= 0) & (in_window[:, 0] >= 0) & (in_window[:, 0] <= in_window[:, 1])
    inside &= in_window[:, 1] < windows.context_lengths.numpy()
    positions = in_window + windows.context_at.numpy()[:, np.newaxis]
    return np.where(inside[:, np.newaxis], positions, 0).astype(np.int32)


def span_targets(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts the labels of a batch to targets for `keras.Model.fit`.

    Returns:
        "start_logits" and "end_logits", int32 [B, S] each: 1 at the labeled position, 0 at other
        tokens, -1 at padding.
    """
    targets = {}
    for end in ENDS:
        target = np.where(batch["input_mask"] == 1, 0, -1).astype(np.int32)
        target[np.arange(len(target)), batch[f"{end}_positions"]] = 1
        targets[f"{end}_logits"] = target
    return targets


def _byte_offset(text: str, character: int) -> int:
    """Returns the UTF-8 byte offset of a character; a lone surrogate takes three bytes."""
    return len(text[:character].encode("utf-8", "surrogatepass"))
