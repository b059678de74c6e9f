"""Verifies record files, and prints their statistics and examples.

    keras-bert inspect-tfrecords --input_file=dataset

    keras-bert inspect-tfrecords --input_file=dataset --json

Statistics and examples are printed to stdout as text; with --json, only the statistics, as JSON.
Each file that differs from its manifest is reported on stderr, and the exit code is then 1.
"""

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from absl.flags import FlagValues

from data_tools.jobs import Progress
from data_tools.lines import KINDS, OddInput
from keras_bert.errors import InputError
from keras_bert.files import sha256
from keras_bert.options import option
from keras_bert.pretraining.record_files import MANIFEST, find_record_files, shards_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.startup import start_tensorflow
from keras_bert.text.vocabulary import load_vocab

if TYPE_CHECKING:
    from keras_bert.pretraining.records import PretrainingData

# --- verification ---


def verify(record_files: list[tuple[str, list[str], dict[str, Any] | None]]) -> None:
    """Compares record files with their manifests, and reports each difference on stderr."""
    problems = []
    with Progress("verifying", None, "B") as progress:
        for folder, names, manifest in record_files:
            vocab = {manifest["vocab"]["file"]: manifest["vocab"]} if manifest else {}
            entries = shards_of(manifest) | vocab
            for name in [*names, *vocab]:
                path = os.path.join(folder, name)
                try:
                    problem = _difference(path, entries.get(name)) if manifest else ""
                    progress.add(os.path.getsize(path))
                except OSError as error:
                    problem = f"cannot be read ({error.strerror})"
                problems += [f"{path}: {problem}"] if problem else []
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        raise InputError(f"files that failed verification: {len(problems)} (listed above)")


def _difference(path: str, entry: dict[str, Any] | None) -> str:
    size = os.path.getsize(path)
    if entry is None:
        return f"not listed in {MANIFEST}; expected only listed record files"
    if size != (expected := entry.get("bytes", size)):
        return f"found {size} bytes; expected {expected}"
    if (digest := sha256(path)) != (expected := entry["sha256"]):
        return f"found sha256 {digest}; expected {expected}"
    return ""


# --- reading ---


def read_batches(
    data: "PretrainingData", vocab_size: int
) -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Yields (path of a file, index of a row, n rows from there).

    The rows are {feature: array [n, width]}. The features of masks and of packed rows are added if
    the records lack them: no predictions, one example in each row. There is also original_ids, the
    token ids before masking, and is_predicted.
    """
    import tensorflow as tf

    from keras_bert.pretraining.records import explain_record_errors, parse_records

    with explain_record_errors(data, vocab_size):
        for path in data.files:
            first_row = 0
            for serialized in tf.data.TFRecordDataset(path).batch(1024):
                parsed = parse_records(serialized, data, vocab_size)
                batch = {name: values.numpy() for name, values in parsed.items()}
                batch["original_ids"] = batch["input_ids"].copy()
                batch["is_predicted"] = np.zeros(batch["input_ids"].shape, bool)
                if data.masking is None:
                    row, slot = np.nonzero(batch["masked_lm_weights"])
                    column = batch["masked_lm_positions"][row, slot]
                    batch["original_ids"][row, column] = batch["masked_lm_ids"][row, slot]
                    batch["is_predicted"][row, column] = True
                if not data.pack:
                    batch["example_ids"] = batch["input_mask"]
                    batch["next_sentence_labels"] = batch["next_sentence_labels"][:, None]
                    batch["next_sentence_weights"] = np.ones((len(batch["input_ids"]), 1))
                yield path, first_row, batch
                first_row += len(batch["input_ids"])


# --- statistics ---


def inspect(
    data: "PretrainingData", vocab: Sequence[str], num_examples: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """Reads a dataset; returns its statistics, and its first `num_examples` rows as lines of text.

    Statistics are {name: value}, with shares from 0 to 1, or None if their total is 0. Without the
    tokens of the vocabulary, there are no statistics of [MASK] and [UNK], and no lines.
    """
    sums: Counter[str] = Counter()
    hashes = bytearray()  # 8 bytes for each example
    lines: list[str] = []
    with Progress("reading", None, "rows") as progress:
        batches = read_batches(data, len(vocab) or 2**31 - 1)
        for path, first_row, batch in batches:
            num_rows = len(batch["input_ids"])
            if vocab:
                for index in range(min(num_rows, num_examples - sums["rows"])):
                    values = {name: value[index] for name, value in batch.items()}
                    title = f"{path} record {first_row + index}"
                    lines += ["", *describe(title, values, data, vocab)]
            sums.update(_counts(batch, vocab))
            hashes += _hashes(batch)
            progress.add(num_rows)

    def share(part: str, total: str) -> float | None:
        return sums[part] / sums[total] if sums[total] else None

    statistics = {"next_sentence": data.next_sentence}
    statistics |= {name: sums[name] for name in ("rows", "examples", "tokens")}
    statistics["padding_share"] = share("padding", "positions")
    statistics["label_1_share"] = share("label_1", "examples")
    if vocab:
        statistics["unknown_share"] = share("unknown", "tokens")
    if data.masking is None:
        statistics["predictions"] = sums["predictions"]
        statistics["predicted_share"] = share("predictions", "tokens")
        for kind in ("mask", "random", "kept") if vocab else ():
            statistics[f"{kind}_share"] = share(kind, "predictions")
    values = np.frombuffer(hashes, np.uint64)
    statistics["duplicates"] = len(values) - len(np.unique(values))
    return statistics, lines


def _counts(batch: Mapping[str, np.ndarray], vocab: Sequence[str]) -> dict[str, int]:
    is_real, is_predicted = batch["input_mask"] != 0, batch["is_predicted"]
    is_example, labels = batch["next_sentence_weights"] != 0, batch["next_sentence_labels"]
    counts = {
        "examples": is_example,
        "positions": np.ones_like(is_real),
        "tokens": is_real,
        "padding": ~is_real,
        "label_1": is_example & (labels != 0),
        "predictions": is_predicted,
    }
    if vocab:
        counts["kept"] = is_predicted & (batch["input_ids"] == batch["original_ids"])
        is_mask = batch["input_ids"] == vocab.index("[MASK]")
        counts["mask"] = is_predicted & ~counts["kept"] & is_mask
        counts["random"] = is_predicted & ~counts["kept"] & ~is_mask
        counts["unknown"] = is_real & (batch["original_ids"] == vocab.index("[UNK]"))
    return {"rows": len(is_real)} | {k: int(np.count_nonzero(v)) for k, v in counts.items()}


def _hashes(batch: Mapping[str, np.ndarray]) -> bytes:
    """Hashes the tokens of each example before masking, 8 bytes each."""
    is_real = batch["input_mask"] != 0
    row = np.arange(len(is_real))[:, None] * (is_real.shape[1] + 1)
    starts = np.flatnonzero(np.diff((row + batch["example_ids"])[is_real], prepend=-1))
    ids = batch["original_ids"][is_real]
    bounds = itertools.pairwise([*starts.tolist(), len(ids)])
    return b"".join(blake2b(ids[a:b].tobytes(), digest_size=8).digest() for a, b in bounds)


def manifest_statistics(manifests: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    """Sums the documents, sentences and odd input of {folder: manifest}; returns {} without any."""
    odd, counts = OddInput(), {"documents": 0, "sentences": 0}
    for manifest in manifests.values():
        for entry in manifest["inputs"]:
            odd.merge(entry["odd"])
        for name in counts:
            counts[name] += manifest["counts"][name]
    return {**counts, "odd": odd} if manifests else {}


def report(statistics: Mapping[str, Any]) -> Iterator[str]:
    """Formats the statistics of `manifest_statistics` and `inspect` as lines of text."""

    def percent(name: str, unit: str) -> str:
        return "" if statistics.get(name) is None else f"{100 * statistics[name]:.2f}% {unit}"

    if "documents" in statistics:
        documents, sentences = statistics["documents"], statistics["sentences"]
        yield f"documents          {documents:,} with {sentences:,} sentences"
        for kind, entry in statistics["odd"].items():
            name, handling = KINDS[kind]
            yield f"irregular input    {name}: {entry['count']:,}; {handling}"
    yield f"examples           {statistics['examples']:,} in {statistics['rows']:,} rows"
    unknown = percent("unknown_share", "[UNK]")
    yield f"tokens             {statistics['tokens']:,}" + (unknown and f", {unknown}")
    yield f"padding            {percent('padding_share', 'of all positions')}"
    if "predictions" in statistics:
        yield f"predicted          {percent('predicted_share', 'of tokens')}"
        names = {"mask_share": "[MASK]", "random_share": "random", "kept_share": "kept"}
        if kinds := list(filter(None, itertools.starmap(percent, names.items()))):
            yield f"of these           {', '.join(kinds)}"
    else:
        yield "predicted          masks are generated during training"
    if statistics["next_sentence"] != "none":
        meaning = "not next" if statistics["next_sentence"] == "random" else "swapped"
        yield f"next sentence      {percent('label_1_share', meaning)}"
    yield f"duplicates         {statistics['duplicates']:,} examples with the same tokens"


# --- examples as text ---

_LABELS = {
    "random": ("B follows A", "B is a random text"),
    "order": ("in order", "swapped"),
}


def describe(
    title: str, row: Mapping[str, np.ndarray], data: "PretrainingData", vocab: Sequence[str]
) -> Iterator[str]:
    """Yields lines of text that show the examples of one row of `read_batches`.

        [MASK→cat]  the token was replaced by [MASK]
        [dog→cat]   the token was replaced by a random one
        [=cat]      the token was kept, but is predicted

    `title` is the name of the row, and `vocab` are the tokens of the vocabulary.
    """
    labels = row["next_sentence_labels"][row["next_sentence_weights"] != 0].tolist()
    for number, label in enumerate(labels, start=1):
        of_example = (row["input_mask"] != 0) & (row["example_ids"] == number)
        notes = [f"{np.count_nonzero(of_example)} tokens"]
        if data.masking is not None:
            notes.append("masks are generated during training")
        else:
            notes.append(f"{np.count_nonzero(row['is_predicted'] & of_example)} to predict")
        if data.next_sentence in _LABELS:
            notes.append(_LABELS[data.next_sentence][label])
        of_row = f", example {number} of {len(labels)}" if data.pack else ""
        yield f"{title}{of_row}: {', '.join(notes)}"
        for segment, name in enumerate("AB"):
            columns = np.flatnonzero(of_example & (row["segment_ids"] == segment))
            if len(columns):
                yield f"  {name}: {_text(row, columns, vocab)}"


def _text(row: Mapping[str, np.ndarray], columns: np.ndarray, vocab: Sequence[str]) -> str:
    words: list[str] = []
    for column in columns:
        now, original = vocab[row["input_ids"][column]], vocab[row["original_ids"][column]]
        is_continued = bool(words) and original.startswith("##")
        word = original.removeprefix("##") if is_continued else original
        if row["is_predicted"][column]:
            word = f"[={word}]" if now == original else f"[{now.replace('[MASK]', 'MASK')}→{word}]"
        words.append("" if is_continued or not words else " ")
        words.append(word)
    return "".join(words)


# --- program ---


@dataclass(frozen=True)
class InspectOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "data"
    input_file: str = option(
        "", "Comma-separated list of folders, record files and globs.", required=True
    )
    vocab_file: str | None = option(None, "Vocabulary file. Default: the one next to the manifest.")
    num_examples: int = option(3, "Number of records to show.", min=0)
    json: bool = option(False, "Print the statistics as JSON, without examples.")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Verifies the record files, and prints their statistics and examples."""
    reject_arguments(arguments)
    verify(find_record_files(flags.input_file, include_unlisted=True))
    start_tensorflow()
    from keras_bert.pretraining.records import find_records

    data = find_records(flags.input_file)
    vocab_file = flags.vocab_file or data.vocab_file
    vocab = load_vocab(vocab_file) if vocab_file else []
    num_examples = 0 if flags.json else flags.num_examples
    statistics, lines = inspect(data, vocab, num_examples)
    statistics = manifest_statistics(data.manifests) | statistics
    if flags.json:
        print(json.dumps(statistics, indent=2, ensure_ascii=False))
        return
    print(*report(statistics), sep="\n")
    if num_examples and not vocab:
        print("\nNo vocabulary found next to the files; use --vocab_file to show examples as text")
    print(*lines, sep="\n")


PROGRAM = Program("inspect-tfrecords", __doc__, (InspectOptions,), main)
