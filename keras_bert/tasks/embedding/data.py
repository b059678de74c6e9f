"""Reads pairs, triplets and scored pairs from TSV, CSV, JSONL, Parquet and Arrow files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.data import label_array
from keras_bert.tasks.classification.tables import Texts, check_text_cells, read_rows, unit_of
from keras_bert.tasks.embedding.losses import DEFAULT_SCALE, EmbeddingLoss
from keras_bert.tasks.embedding.rows import TextRows, check_range, check_scores
from keras_bert.tasks.long_text import LongText

PAIRS, SCORED = "pairs", "scored"


@dataclass(frozen=True)
class EmbeddingSettings:
    """The settings for the data and the loss of a run.

    Attributes:
        train_file: the file of the training examples, in TSV, CSV, JSONL, Parquet or Arrow.
        eval_file: the file of the development examples; empty for none.
        loss: `mnrl` for pairs and triplets; `cosent` or `cosine` for scored pairs.
        scale: the factor of the cosines in `mnrl` and `cosent`.
        pooling: `mean` or `cls`; None for the checkpoint's, or else `mean`.
        matryoshka_sizes: the sizes of truncated vectors to train; empty for whole vectors.
        eval_kind: `pairs` or `scored`, the examples in `eval_file`; None for those of the loss.
        anchor_column: pairs: the name of the column with the anchors.
        positive_column: pairs: the name of the column with the positives.
        negative_column: the name of the column with the negatives of triplets; empty for pairs.
        text_a_column: scored pairs: the name of the column with the first texts.
        text_b_column: scored pairs: the name of the column with the second texts.
        score_column: scored pairs: the name of the column with the scores.
        score_range: the lowest and the highest score that is accepted.
        long_text: the strategy for long texts, as in `LongText`.
        window_stride: as in `LongText`.
    """

    train_file: str = ""
    eval_file: str = ""
    loss: str = "mnrl"
    scale: float = DEFAULT_SCALE
    pooling: str | None = None
    matryoshka_sizes: Sequence[str] = ()
    eval_kind: str | None = None
    anchor_column: str = "anchor"
    positive_column: str = "positive"
    negative_column: str = ""
    text_a_column: str = "text_a"
    text_b_column: str = "text_b"
    score_column: str = "score"
    score_range: Sequence[str] = ("-1", "1")
    long_text: str = "truncate"
    window_stride: int = 0

    def make_loss(self, hidden_size: int) -> EmbeddingLoss:
        """Creates the loss for vectors of a size; raises InputError for an invalid setting."""
        columns = 3 if self.loss == "mnrl" and self.negative_column else 2
        given = ",".join(map(str, self.matryoshka_sizes))
        sizes = matryoshka_sizes("--matryoshka_sizes=" + given, self.matryoshka_sizes, hidden_size)
        return EmbeddingLoss(self.loss, self.scale, columns, sizes)

    @property
    def numeric_range(self) -> tuple[float, float]:
        """The lowest and the highest score; raises InputError for an invalid range."""
        return check_range("--score_range", self.score_range)

    @property
    def long_text_settings(self) -> LongText:
        """The settings of long texts; raises InputError for an invalid setting."""
        return LongText(self.long_text, self.window_stride)


def matryoshka_sizes(where: str, values: Sequence[object], hidden_size: int) -> tuple[int, ...]:
    """Converts sizes of truncated vectors to integers, the largest first.

    `where` is the beginning of the error message.

    Raises:
        InputError: a size is not from 1 to `hidden_size`, or is repeated.
    """
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


def read_training_rows(settings: EmbeddingSettings) -> TextRows:
    """Reads the training examples.

    Raises:
        InputError: there is no such file, or a row has an invalid format.
    """
    if not settings.train_file:
        raise InputError("--train_file is missing; expected a file of examples, or --nodo_train")
    if settings.loss != "mnrl":
        return _read_scored(settings, settings.train_file)
    columns = [settings.anchor_column, settings.positive_column]
    columns += [settings.negative_column] if settings.negative_column else []
    return _read(settings.train_file, columns)


def read_evaluation_rows(settings: EmbeddingSettings) -> TextRows | None:
    """Reads the development examples; None without a file. Raises as `read_training_rows`."""
    if not settings.eval_file:
        return None
    kind = settings.eval_kind or (PAIRS if settings.loss == "mnrl" else SCORED)
    if kind == SCORED:
        return _read_scored(settings, settings.eval_file)
    return _read(settings.eval_file, [settings.anchor_column, settings.positive_column])


def _read_scored(settings: EmbeddingSettings, file: str) -> TextRows:
    columns = [settings.text_a_column, settings.text_b_column]
    rows = _read(file, columns, settings.score_column)
    check_scores(rows, settings.numeric_range, ", or another --score_range")
    return rows


def _read(file: str, columns: Sequence[str], score_column: str = "") -> TextRows:
    path, names = Path(file), [*columns, *([score_column] if score_column else [])]
    rows = list(read_rows(path, names))
    if not rows:
        raise InputError(f"{path}: has no rows; expected at least one")
    check_text_cells(path, rows, columns)
    texts = tuple([row.cells[place] for row in rows] for place in range(len(columns)))
    places, unit = [row.line for row in rows], unit_of(path)
    labels = [row.cells[-1] for row in rows]
    located = Texts(str(path), texts[0], None, labels, places, [], unit)
    scores = label_array(located, "regression", ()) if score_column else None
    return TextRows(texts, scores, located.where, str(path))
