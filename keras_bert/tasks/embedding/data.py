"""Reads and checks the examples of text embeddings, from files or arguments.

pairs         anchor, positive              texts that belong together
triplets      anchor, positive, negative    and a text that does not belong to the anchor
scored pairs  text_a, text_b, score         how similar two texts are
BEIR          a directory (retrieval.py)    pairs of a query and a relevant document; in evaluation,
                                            the ranking of all documents
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.tasks.checks import (
    check_columns,
    check_list,
    check_not_blank,
    check_not_empty,
    check_same_length,
    check_texts,
    columns_of_tuples,
    described,
)
from keras_bert.tasks.classification.data import label_array
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.prepared import Prepared, short_rows
from keras_bert.tasks.retrieval import RetrievalData, as_retrieval_data, is_beir, read_beir
from keras_bert.tasks.settings import EmbeddingSettings
from keras_bert.tasks.tables import Texts, read_rows, read_texts

# --- settings ---


def matryoshka_sizes(where: str, values: Sequence[object], hidden_size: int) -> tuple[int, ...]:
    """Converts sizes of truncated vectors to integers, the largest first."""
    try:
        sizes = [int(str(value)) for value in values]
    except (TypeError, ValueError):
        sizes = [0]
    wrong = [size for size in sizes if not 1 <= size <= hidden_size]
    if wrong or len(set(sizes)) < len(sizes):
        raise InputError(
            f"{where}: expected different whole numbers from 1 to {hidden_size}, the model's "
            "hidden size"
        )
    return tuple(sorted(sizes, reverse=True))


def make_loss(settings: EmbeddingSettings, hidden_size: int) -> EmbeddingLoss:
    """Creates the loss for vectors of a size; raises InputError for an invalid setting."""
    columns = 3 if settings.loss == "mnrl" and "negative" in settings.column_names else 2
    where = "--matryoshka_sizes=" + ",".join(map(str, settings.matryoshka_sizes))
    sizes = matryoshka_sizes(where, settings.matryoshka_sizes, hidden_size)
    return EmbeddingLoss(settings.loss, settings.scale, columns, sizes)


# --- examples ---


class TextRows(Texts):
    """n examples of k texts each; `labels` are the scores of pairs, float32 [n], or None."""

    @property
    def scores(self) -> np.ndarray | None:
        """The scores, float32 [n]; None for pairs and triplets."""
        return self.labels

    @property
    def texts(self) -> list[str]:
        """All n · k texts; the texts of an example are consecutive."""
        return [text for row in zip(*self.columns, strict=True) for text in row]

    @property
    def ids(self) -> np.ndarray:
        """A number for each of the texts, int32 [n, k]; the same for equal texts."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(text, len(numbers)) for text in self.texts]
        return np.array(ids, np.int32).reshape(-1, len(self.columns))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields each example as a tuple of its texts and its score, None without one."""
        scores = [None] * len(self) if self.scores is None else self.scores.tolist()
        return zip(*self.columns, scores, strict=True)

    def labeled(self, prepared: Prepared) -> Prepared:
        """Adds the labels for training to the preprocessed texts."""
        width = len(self.columns)
        scores = np.zeros(len(self), np.float32) if self.scores is None else self.scores
        labels = {
            "scores": np.repeat(scores, width).astype(np.float32),
            "text_ids": self.ids.ravel(),
        }
        shown = short_rows(self.columns[:2])
        examples = replace(prepared.examples, labels=labels, group_size=width, shown=shown)
        return prepared._replace(examples=examples)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Checks a range of scores, the lowest and the highest, and returns it as a tuple."""
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise InputError(
            f"{name}={value!r:.60}: expected the lowest and the highest score, such as 0 and 5"
        )
    return low, high


# The remedy of `check_scores` for arguments of the API.
SCALED = ", such as score / 5 for scores from 0 to 5"


def check_scores(
    rows: TextRows,
    score_range: tuple[float, float] = (-1.0, 1.0),
    remedy: str = "",
) -> None:
    """Raises InputError if a score is outside the range; `remedy` is the end of the message."""
    low, high = score_range
    for index in np.flatnonzero(~((rows.scores >= low) & (rows.scores <= high)))[:1].tolist():
        raise InputError(
            f"{rows.where(index)}: the score is {rows.scores[index]:g}; expected from {low:g} to "
            f"{high:g}{remedy}"
        )


def check_training_rows(rows: TextRows, loss: EmbeddingLoss, batch_size: int) -> None:
    """Checks that a loss can learn from the examples in batches of `batch_size`."""
    check_evaluation_rows(rows, "nothing can be learned from them")
    is_pairs = rows.scores is None and len(rows.columns) == 2
    if batch_size < 2 and (is_pairs or loss.name == "cosent"):
        raise InputError(
            f"batch size {batch_size}: the loss {loss.name} compares each pair with the other "
            "pairs of its batch; expected at least 2"
        )


def check_evaluation_rows(
    rows: TextRows, consequence: str = "Spearman's correlation is undefined"
) -> None:
    """Raises InputError if there are no examples, or if all scores are equal."""
    if not len(rows):
        raise InputError(f"{rows.source}: has no examples; expected at least one")
    if rows.scores is not None and np.all(rows.scores == rows.scores[0]):
        raise InputError(
            f"{rows.source}: all {len(rows)} scores are equal, so {consequence}; "
            "expected at least two different scores"
        )


# --- files ---

PAIR, SCORED = ("anchor", "positive"), ("text_a", "text_b", "score")  # roles of columns


def read_training_rows(settings: EmbeddingSettings) -> TextRows:
    """Reads the training examples.

    Scores are divided by the largest absolute value of their range, as they are compared with
    cosines.
    """
    if not settings.train_file:
        raise InputError("--train_file is missing; expected a file of examples, or --nodo_train")
    score_range = check_range("--score_range", settings.score_range)
    if data := _read_beir(settings):
        return _pairs_of(data)
    roles = (*PAIR, "negative") if settings.loss == "mnrl" else SCORED
    rows = _read(settings, settings.train_file, roles, score_range)
    if rows.scores is None:
        return rows
    scores = rows.scores / np.float32(max(map(abs, score_range)))
    return TextRows(rows.source, rows.columns, scores, rows.locations)


def with_negatives(settings: EmbeddingSettings) -> EmbeddingSettings:
    """Adds the column `negative` to the settings of pairs if the training file has this column."""
    names, file = settings.column_names, settings.train_file
    if settings.loss == "mnrl" and "negative" not in names and file and not is_beir(file):
        row = next(read_rows(Path(file), (), ["negative"]), None)
        if row and row.cells.get("negative") is not None:
            return replace(settings, columns=(*settings.columns, "negative=negative"))
    return settings


def read_evaluation_rows(settings: EmbeddingSettings) -> TextRows | RetrievalData | None:
    """Reads the development examples; None without a file. Raises as `read_training_rows`."""
    if not settings.eval_file:
        return None
    if is_beir(settings.eval_file):
        return read_beir(settings.eval_file)
    names = settings.column_names
    columns = [names[role] for role in (*PAIR, *SCORED)]
    row = next(read_rows(Path(settings.eval_file), (), columns), None)
    cells = {name for name, value in row.cells.items() if value is not None} if row else set()
    kinds = [roles for roles in (PAIR, SCORED) if cells >= {names[role] for role in roles}]
    # A file with the columns of both kinds has the kind of the training examples.
    if len(kinds) != 1:
        kinds = [PAIR if settings.loss == "mnrl" else SCORED]
    score_range = check_range("--score_range", settings.score_range)
    return _read(settings, settings.eval_file, kinds[0], score_range)


def read_pairs_to_mine(settings: EmbeddingSettings) -> tuple[TextRows, list[str]]:
    """Reads pairs to mine negatives for, and other texts that may be negatives."""
    if not settings.train_file:
        raise InputError("--mine_negatives: expected --train_file, too, with pairs of texts")
    if settings.loss != "mnrl":
        raise InputError(f"--loss={settings.loss}: mining needs pairs; expected --loss=mnrl")
    if data := _read_beir(settings):
        return _pairs_and_corpus(data)
    return _read(settings, settings.train_file, PAIR), []


def _read_beir(settings: EmbeddingSettings) -> RetrievalData | None:
    """Reads the training file if it is a BEIR directory; returns None for another file."""
    if not is_beir(settings.train_file):
        return None
    if settings.loss != "mnrl" or settings.columns:
        raise InputError(
            f"--train_file={settings.train_file}: is a BEIR directory, which has pairs; expected "
            "--loss=mnrl, and no --columns"
        )
    return read_beir(settings.train_file, "train")


def _pairs_and_corpus(data: RetrievalData) -> tuple[TextRows, list[str]]:
    return _pairs_of(data), list(filter(str.strip, data.corpus.values()))


def _pairs_of(data: RetrievalData) -> TextRows:
    """Returns the queries and their relevant documents as pairs."""
    columns = data.pairs
    if not columns[0]:
        raise InputError(f"{data.source}: has no relevant documents with a text; expected some")
    locations = [f"{data.source}, pair {number}" for number in range(1, len(columns[0]) + 1)]
    return TextRows(data.source, columns, None, locations)


def _read(
    settings: EmbeddingSettings,
    file: str,
    roles: Sequence[str],
    score_range: tuple[float, float] = (-1.0, 1.0),
) -> TextRows:
    names = settings.column_names
    columns = [names[role] for role in roles if role != "score" and role in names]
    if roles != SCORED:
        texts = read_texts(Path(file), columns)
        return TextRows(texts.source, texts.columns, None, texts.locations)
    texts = read_texts(Path(file), columns, names["score"])
    scores = label_array(texts, "regression", ())
    rows = TextRows(texts.source, texts.columns, scores, texts.locations)
    check_scores(rows, score_range, ", or another --score_range")
    return rows


# --- arguments of the Python API ---


def check_rows(name: str, texts: Any, scores: Any = None) -> TextRows:
    """Checks the arguments of `fit`: a tuple of two or three lists of strings, or a list of tuples.

    `scores` are n numbers, or None; `name` is that of the argument `texts` in error messages.
    """
    widths = (2, 3) if scores is None else (2,)
    texts = columns_of_tuples(name, texts)
    if not isinstance(texts, tuple) or len(texts) not in widths:
        expected = "two lists of strings" + (", or for triplets three" if scores is None else "")
        raise InputError(f"{name} is {described(texts)}; expected a tuple of {expected}")
    columns = check_columns(name, texts)
    for i, column in enumerate(columns):
        check_not_blank(f"{name}[{i}]", column)
    array = None
    if scores is not None:
        items = check_list("scores", scores, "numbers")
        check_same_length(**{f"{name}[0]": columns[0], "scores": items})
        check_schema("scores", items, [float])
        array = np.array(items, np.float32)
    locations = [f"{name}, item {index}" for index in range(len(columns[0]))]
    return TextRows(name, columns, array, locations)


def check_pairs_to_mine(queries: Any, positives: Any, corpus: Any) -> tuple[TextRows, list[str]]:
    """Checks the arguments of `TextEmbedder.mine_negatives`; returns as `read_pairs_to_mine`."""
    data = as_retrieval_data(queries, "train")
    if data is not None:
        if positives is not None or corpus is not None:
            raise InputError(
                "positives and corpus: have no effect with retrieval data; expected one of both"
            )
        return _pairs_and_corpus(data)
    lists = {"queries": queries, "positives": positives}
    columns = {name: check_texts(name, value)[0] for name, value in lists.items()}
    check_same_length(**columns)
    texts = [] if corpus is None else check_texts("corpus", corpus)[0]
    for name, column in (columns | {"corpus": texts}).items():
        check_not_blank(name, column)
    check_not_empty("queries", columns["queries"])
    locations = [f"queries, item {index}" for index in range(len(columns["queries"]))]
    return TextRows("queries", tuple(columns.values()), None, locations), texts


def check_evaluation_pairs(name: str, texts: Any, scores: Any) -> TextRows:
    """Checks pairs to evaluate; `name` is the name of the argument `texts` in error messages."""
    rows = check_rows(name, texts, scores)
    if len(rows.columns) != 2:
        raise InputError(f"{name} is a tuple of 3 items; expected a tuple of two lists of strings")
    if rows.scores is not None:
        check_scores(rows, remedy=SCALED)
    check_evaluation_rows(rows)
    return rows
