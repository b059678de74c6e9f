"""Words -> word pieces -> windows of a bounded length, and where each word is scored.

    words      Johanson  visits  U+200B  Ulm         a word of no piece becomes [UNK]
    pieces     johan ##son visits [UNK] ulm
    window     [CLS] johan ##son visits [UNK] ulm [SEP]
    tags         -1    1     -1     0     0    3    -1      the first piece carries its word's tag

A sentence that does not fit is split into windows that overlap by half, and each word is trained on
and scored in one window: the one that shows most of what stands around it. Document context fills
each window with words of the sentences before and after, which are neither trained on nor scored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.text.tokenizer import BertTokenizer

TOKENIZED_AT_ONCE = 100_000  # words


@dataclass(frozen=True)
class Windows:
    """The windows of N words.

    Attributes:
        examples: the windows; if the words have tags, `token_labels["tags"]` holds them.
        word_places: int64 [N], where among the pieces of all windows each word's first piece lies,
            in the window that scores the word.
    """

    examples: Examples
    word_places: np.ndarray


def make_windows(
    sentences: Sequence[Sentence],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    tag_ids: np.ndarray | None = None,
    document_context: bool = False,
    label_all_pieces: bool = False,
) -> Windows:
    """Cuts sentences into windows of pieces.

    Args:
        sentences: N words in all.
        tokenizer: cuts the words.
        max_seq_length: pieces a window at most, with [CLS] and [SEP].
        tag_ids: int [N], or None for words without tags.
        document_context: fill windows with the words around, of the same document.
        label_all_pieces: every piece of a word carries its tag, not the first one alone.

    Returns:
        The windows.

    Raises:
        InputError: `max_seq_length` has no room for a piece.
    """
    room = max_seq_length - 2
    if room < 1:
        raise InputError(f"--max_seq_length={max_seq_length}: expected at least 3")
    ids, starts = _tokenize([w for sentence in sentences for w in sentence.words], tokenizer, room)
    spans = np.array(list(_spans(sentences, starts, room, document_context)), np.int64)
    first, last, scored_first, scored_last = spans.T

    lengths = starts[last] - starts[first]
    window_starts = row_splits(lengths + 2)
    input_ids = np.empty([window_starts[-1]], np.int32)
    input_ids[window_starts[:-1]] = tokenizer.cls_token_id
    input_ids[window_starts[1:] - 1] = tokenizer.sep_token_id
    input_ids[ranges(window_starts[:-1] + 1, lengths)] = ids[ranges(starts[first], lengths)]

    counts = scored_last - scored_first
    scored = ranges(scored_first, counts)
    word_places = np.empty([len(starts) - 1], np.int64)
    shift = window_starts[:-1] + 1 - starts[first]
    word_places[scored] = starts[scored] + np.repeat(shift, counts)

    token_labels = {}
    if tag_ids is not None:
        tags = np.full([len(input_ids)], -1, np.int32)
        pieces = np.diff(starts) if label_all_pieces else np.ones([len(word_places)], np.int64)
        tags[ranges(word_places, pieces)] = np.repeat(tag_ids, pieces)
        token_labels["tags"] = tags
    examples = Examples(
        input_ids, np.zeros_like(input_ids), window_starts, token_labels=token_labels
    )
    return Windows(examples, word_places)


def _tokenize(
    words: Sequence[str], tokenizer: BertTokenizer, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pieces of all words, int32 [P], and where each word's start, int64 [N + 1].

    Each word has one piece at least, and at most `room`.
    """
    parts, counts = [], []
    for start in range(0, len(words), TOKENIZED_AT_ONCE):
        pieces = tokenizer.tokenize(words[start : start + TOKENIZED_AT_ONCE])
        parts.append(pieces.values.numpy())
        counts.append(pieces.row_lengths().numpy())
    found, counts = np.concatenate(parts), np.concatenate(counts)
    kept = np.clip(counts, 1, room)
    starts = row_splits(kept)
    ids = np.full([starts[-1]], tokenizer.unk_token_id, np.int32)
    taken = np.minimum(counts, room)
    ids[ranges(starts[:-1], taken)] = found[ranges(row_splits(counts)[:-1], taken)]
    return ids, starts


def _spans(
    sentences: Sequence[Sentence], starts: np.ndarray, room: int, document_context: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yields for each window its first word, the one after its last, and those that it scores."""
    ends = np.cumsum([len(sentence.words) for sentence in sentences])
    documents = np.array([sentence.document for sentence in sentences])
    # The words that end each sentence's document, and those that begin it.
    document_ends = ends[np.searchsorted(documents, documents, "right") - 1]
    document_starts = np.concatenate([[0], ends])[np.searchsorted(documents, documents)]
    for sentence, end in enumerate(ends):
        begin = end - len(sentences[sentence].words)
        around = (begin, end)
        if document_context:
            around = (document_starts[sentence], document_ends[sentence])
        for first, last, scored_first, scored_last in _split(starts, begin, end, room):
            yield (*_widened(starts, first, last, around, room), scored_first, scored_last)


def _split(
    starts: np.ndarray, begin: int, end: int, room: int
) -> Iterator[tuple[int, int, int, int]]:
    """Splits the sentence of the words [begin, end) into windows, as `_spans` yields them."""
    if starts[end] - starts[begin] <= room:
        yield begin, end, begin, end
        return
    windows = [(begin, _last_within(starts, begin, end, room))]
    while windows[-1][1] < end:
        first, last = windows[-1]
        # Half of this one again, unless there would be no room for the word that follows.
        least = max((starts[first] + starts[last]) // 2, starts[last + 1] - room)
        first = max(first + 1, int(np.searchsorted(starts, least)))
        last = _last_within(starts, first, end, room)
        windows.append((int(np.searchsorted(starts, starts[last] - room)), last))
    scored = begin
    for window, after in zip(windows, [*windows[1:], None], strict=True):
        scored_last = end if after is None else _border(starts, window[1], after[0])
        yield (*window, scored, scored_last)
        scored = scored_last


def _last_within(starts: np.ndarray, first: int, end: int, room: int) -> int:
    """Returns the word after the last that a window from `first` on has room for."""
    return min(end, int(np.searchsorted(starts, starts[first] + room, "right")) - 1)


def _border(starts: np.ndarray, last: int, first: int) -> int:
    """Returns the first word that the later of two windows shows more around than the earlier.

    In the words that both have, what is short is the context after them in the earlier window,
    which ends before the word `last`, and that before them in the later one, which begins at
    `first`.
    """
    words = np.arange(first, last)
    after = starts[last] - starts[words + 1]
    before = starts[words] - starts[first]
    return first + int(np.count_nonzero(after >= before))


def _widened(
    starts: np.ndarray, first: int, last: int, around: tuple[int, int], room: int
) -> tuple[int, int]:
    """Widens a window to whole words of `around`, as much on both sides as there is room for."""
    spare = room - (starts[last] - starts[first])
    before, after = starts[first] - starts[around[0]], starts[around[1]] - starts[last]
    left = min(before, max(spare // 2, spare - after))
    widened = int(np.searchsorted(starts, starts[first] - left))
    right = min(after, spare - (starts[first] - starts[widened]))
    return widened, int(np.searchsorted(starts, starts[last] + right, "right")) - 1
