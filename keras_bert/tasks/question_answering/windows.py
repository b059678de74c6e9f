"""Questions -> windows of pieces: a long context is read in overlapping parts.

    [CLS] query [SEP] part of the context [SEP]        segments 0 0 0 1 1

    questions (text) -> pieces and their characters, each context once -> windows -> Examples

Every text is cut once, by the one tokenizer; a window is a range of its context's pieces, so
making windows is arithmetic on whole arrays. A piece knows its characters in the context, so an
answer is always a slice of the original text.

Q questions, n windows, T pieces in all windows, D pieces in all texts, each cut once.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits
from keras_bert.tasks.question_answering.questions import Question
from keras_bert.text.tokenizer import BertTokenizer, byte_to_char_offsets
from keras_bert.training.progress import progress


@dataclass(frozen=True)
class Windows:
    """The windows of some questions, a question's own one after the other.

    Attributes:
        examples: the n windows as a model reads them.
        question: int64 [n], which question each is of.
        context_at: int64 [n], the place of the context's first piece in the window.
        first_piece: int64 [n], which of the D pieces that is.
        piece_starts: int64 [D], the character of its context that each piece starts at.
        piece_ends: int64 [D], the character after its last.
        question_pieces: int64 [Q, 2], the range of the D pieces that each question is about.
    """

    examples: Examples
    question: np.ndarray
    context_at: np.ndarray
    first_piece: np.ndarray
    piece_starts: np.ndarray
    piece_ends: np.ndarray
    question_pieces: np.ndarray

    @property
    def context_lengths(self) -> np.ndarray:
        """The pieces of the context in each window, int64 [n]."""
        return self.examples.lengths - self.context_at - 1


def make_windows(
    questions: Sequence[Question],
    tokenizer: BertTokenizer,
    max_seq_length: int = 384,
    max_query_length: int = 64,
    doc_stride: int = 128,
) -> Windows:
    """Cuts questions and contexts into pieces and lays windows over them.

    Args:
        questions: Q of them.
        tokenizer: of the model's vocabulary.
        max_seq_length: pieces of a window, with [CLS] and both [SEP].
        max_query_length: pieces of a question; the rest of it is not read.
        doc_stride: pieces from the start of one window to that of the next.

    Returns:
        The windows; every piece of a context is in at least one.

    Raises:
        InputError: max_seq_length leaves no piece to the context.
    """
    if max_seq_length < max_query_length + 4:
        raise InputError(
            f"--max_seq_length={max_seq_length}: expected at least {max_query_length + 4}, room "
            f"for --max_query_length={max_query_length}, [CLS], two [SEP] and a piece of context"
        )
    # All texts in one call, the questions first.
    contexts = list(dict.fromkeys(question.context for question in questions))
    ids, splits, piece_starts, piece_ends = _cut([q.text for q in questions] + contexts, tokenizer)
    place = {context: len(questions) + i for i, context in enumerate(contexts)}
    of = np.array([place[question.context] for question in questions], np.int64)
    pieces = np.stack([splits[of], splits[of + 1]], axis=1)
    sizes = pieces[:, 1] - pieces[:, 0]
    queries = np.minimum(np.diff(splits[: len(questions) + 1]), max_query_length)
    room = max_seq_length - 3 - queries
    step = np.minimum(room, doc_stride)
    counts = 1 + np.maximum(-((room - sizes) // step), 0)  # 1 + how many steps the rest takes

    question = np.repeat(np.arange(len(questions)), counts)
    offset = ranges(0, counts) * step[question]
    length = np.minimum(sizes[question] - offset, room[question])
    context_at = queries[question] + 2
    first_piece = pieces[question, 0] + offset

    starts = row_splits(context_at + length + 1)
    input_ids = np.full([starts[-1]], tokenizer.sep_token_id, np.int32)
    input_ids[starts[:-1]] = tokenizer.cls_token_id
    query = ranges(starts[:-1] + 1, queries[question])
    input_ids[query] = ids[ranges(splits[question], queries[question])]
    context = ranges(starts[:-1] + context_at, length)
    input_ids[context] = ids[ranges(first_piece, length)]
    segment_ids = np.zeros([starts[-1]], np.int32)
    segment_ids[ranges(starts[:-1] + context_at, length + 1)] = 1
    examples = Examples(input_ids, segment_ids, starts)
    return Windows(examples, question, context_at, first_piece, piece_starts, piece_ends, pieces)


def training_examples(windows: Windows, questions: Sequence[Question]) -> Examples:
    """Labels windows with the first and the last piece of their question's first answer.

    The answer is tightened to the pieces that hold some of its characters. A window without all of
    them, or of an impossible question, is taught (0, 0), the place of [CLS].

    Args:
        windows: of `questions`.
        questions: the questions, answered or impossible.

    Returns:
        The windows' examples with `start_positions` and `end_positions`, int32 [n].
    """
    spans = np.array([_answer_pieces(windows, i, q) for i, q in enumerate(questions)])
    span = spans.reshape(-1, 2)[windows.question] - windows.first_piece[:, None]
    inside = (span[:, 0] >= 0) & (span[:, 0] <= span[:, 1])
    inside &= span[:, 1] < windows.context_lengths
    positions = np.where(inside[:, None], span + windows.context_at[:, None], 0).astype(np.int32)
    labels = {"start_positions": positions[:, 0], "end_positions": positions[:, 1]}
    return dataclasses.replace(windows.examples, labels=labels)


def max_context(windows: Windows) -> np.ndarray:
    """Marks each piece of a context in the window that shows most of what is around it.

    The score is the smaller number of pieces to its left or right, plus 0.01 for each piece of
    context in the window; the first window wins a tie (released run_squad).

    Args:
        windows: the windows.

    Returns:
        bool [T]: true once for every piece of every question's context.
    """
    length = windows.context_lengths
    place = ranges(0, length)
    window = np.repeat(np.arange(len(length)), length)
    score = np.minimum(place, length[window] - 1 - place) + 0.01 * length[window]
    # A number of its own for every piece of context of every question.
    sizes = np.diff(windows.question_pieces, axis=1)[:, 0]
    base = np.cumsum(sizes) - sizes - windows.question_pieces[:, 0]
    piece = (base[windows.question] + windows.first_piece)[window] + place
    best = np.full([sizes.sum()], -1.0)
    np.maximum.at(best, piece, score)
    winners = np.flatnonzero(score == best[piece])[::-1]
    owner = np.empty([len(best)], np.int64)
    owner[piece[winners]] = window[winners]  # Of equals the last to be written: the first window.
    chosen = np.zeros([windows.examples.starts[-1]], bool)
    chosen[(windows.examples.starts[:-1] + windows.context_at)[window] + place] = (
        owner[piece] == window
    )
    return chosen


def _answer_pieces(windows: Windows, index: int, question: Question) -> tuple[int, int]:
    """Returns the first and last of the D pieces that hold characters of the first answer."""
    if not question.answers:
        return -1, -1
    answer = question.answers[0]
    begin, end = windows.question_pieces[index]
    first = begin + np.searchsorted(windows.piece_ends[begin:end], answer.start, side="right")
    last = (
        begin
        - 1
        + np.searchsorted(
            windows.piece_starts[begin:end], answer.start + len(answer.text), side="left"
        )
    )
    return first, last


def _cut(
    texts: Sequence[str], tokenizer: BertTokenizer, batch_size: int = 1024
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cuts texts [B] into D pieces: ids [D], row splits [B + 1], first and end characters [D]."""
    parts: list[list[np.ndarray]] = [[np.zeros([0], np.int64)] for _ in range(4)]
    # Called on batches as they are: to make a tf.data graph takes longer than the dev set does.
    with progress("tokenizing", len(texts), "texts") as advance:
        for begin in range(0, len(texts), batch_size):
            # A lone surrogate, as JSON can hold, stays one character of three bytes, not UTF-8.
            batch = [
                text.encode("utf-8", "surrogatepass") for text in texts[begin : begin + batch_size]
            ]
            ids, starts, ends = tokenizer.tokenize_with_offsets(batch)
            starts, ends = (byte_to_char_offsets(batch, offsets) for offsets in (starts, ends))
            for part, values in zip(
                parts, (ids.values, ids.row_lengths(), starts.values, ends.values), strict=True
            ):
                part.append(values.numpy())
            advance(len(batch))
    ids, lengths, starts, ends = map(np.concatenate, parts)
    return ids, row_splits(lengths), starts, ends
