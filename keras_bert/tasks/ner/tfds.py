"""Reads named-entity datasets that TensorFlow Datasets has prepared.

A dataset, such as conll2003, conll2002/es or wikiann/de, must have a column `tokens`, and a column
`ner` or `tags` with the tags. The datasets do not mark the start of documents.
"""

from collections.abc import Callable
from itertools import accumulate

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.prepared_tfds import open_prepared, read_split

_TAGS = ("ner", "tags")
_DEV = ("dev", "validation")


def tfds_name(task_name: str) -> str:
    """Adds the default config, named like the dataset: conll2003 becomes conll2003/conll2003."""
    return task_name if "/" in task_name else f"{task_name}/{task_name}"


def open_dataset(
    task_name: str, data_dir: str = ""
) -> Callable[[str], tuple[str, list[Sentence]] | None]:
    """Opens a prepared dataset, and returns a function that reads the split train, dev or test.

    The function returns a name for error messages and the sentences, or None if the dataset has no
    such split. It raises InputError if the split is empty. An empty `data_dir` means TFDS_DATA_DIR
    or ~/tensorflow_datasets.

    Raises:
        InputError: the dataset is not prepared or has no tags, or tensorflow-datasets is not
            installed.
    """
    builder = open_prepared(tfds_name(task_name), data_dir)
    features = builder.info.features
    column = next((name for name in _TAGS if name in features), None)
    if column is None or "tokens" not in features:
        raise InputError(
            f"--task_name={task_name}: has the columns {', '.join(features)}; expected tokens and "
            f"{' or '.join(_TAGS)}"
        )
    tags = features[column].feature

    def read(split: str) -> tuple[str, list[Sentence]] | None:
        names = _DEV if split == "dev" else (split,)
        split = next((name for name in names if name in builder.info.splits), None)
        if split is None:
            return None
        source = f"{builder.data_path}, split {split}"
        rows = [row for row in read_split(builder, split) if len(row["tokens"])]
        # The line number that each sentence would have in a CoNLL column file.
        lines = accumulate((len(row["tokens"]) + 1 for row in rows), initial=1)
        sentences = [
            Sentence(
                tuple(token.decode() for token in row["tokens"]),
                tuple(tags.int2str(int(tag)) for tag in row[column]),
                line,
            )
            for row, line in zip(rows, lines, strict=False)
        ]
        if not sentences:
            raise InputError(f"{source}: contains no sentences; expected words and their tags")
        return source, sentences

    return read
