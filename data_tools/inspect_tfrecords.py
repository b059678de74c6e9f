"""Verifies record files, and prints their statistics and examples.

    keras-bert inspect-tfrecords --input_file=dataset --num_examples=3

Statistics and examples are printed to stdout as text; with --json, only the statistics, as JSON.
Each file that differs from its manifest is reported on stderr, and the exit code is then 1.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl.flags import FlagValues

from data_tools.inspection import record_batches, record_text
from data_tools.inspection.record_statistics import Statistics, Vocabulary
from data_tools.inspection.verification import verify
from data_tools.jobs import Progress
from data_tools.lines import KINDS, OddInput
from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.data.record_files import MANIFEST, RecordFiles, find_record_files
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.text.vocabulary import load_vocab


def verify_all(found: list[RecordFiles]) -> None:
    """Compares record files with their manifests, and reports each difference on stderr.

    Raises an `InputError` if any file differs.
    """
    problems = []
    with Progress("verifying", None, "B") as progress:
        for files in found:
            problems += verify(files, progress.add)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise InputError(f"files that failed verification: {len(problems)} (listed above)")


def read_all(
    found: list[RecordFiles], vocab_file: str | None, num_examples: int, max_examples: int
) -> tuple[Statistics, list[tuple[record_batches.Batch, int, list[str], str | None]]]:
    """Reads all records, computes statistics and keeps the first `num_examples` rows for display.

    If `vocab_file` is None, the vocabulary next to each manifest is used. `max_examples` is the
    maximum number of rows to read, or 0 for all rows.

    Returns:
        The statistics; and for each kept row (batch, index of the row in the batch, tokens of the
        vocabulary, the setting next_sentence or None if it is not known).

    Raises:
        InputError: if a file is damaged, or files differ in their features or vocabularies.
    """
    shape, remaining = None, max_examples or sys.maxsize
    vocabularies = {files.folder: _vocabulary(files, vocab_file) for files in found}
    if len({tuple(v.tokens) for v in vocabularies.values() if v}) > 1:
        raise InputError("--input_file: folders with different vocabularies; expected a single one")
    vocabulary = next(filter(None, vocabularies.values()), None)
    statistics, shown = Statistics(vocabulary), []
    with Progress("reading", None, "rows") as progress:
        for files, path in [(each, path) for each in found for path in each.paths()]:
            if remaining <= 0:
                break
            rows, own_shape = 0, record_batches.read_shape(path)
            shape = shape or own_shape
            if own_shape is not None and own_shape != shape:
                raise InputError(
                    f"{path}: found records with {_widths(own_shape)}; expected records as in the "
                    f"previous files, with {_widths(shape)}"
                )
            batches = record_batches.read_batches(path, shape, remaining) if own_shape else ()
            for batch in batches:
                if vocabulary:
                    vocabulary.check(batch)
                statistics.add(batch)
                rows += len(batch.is_real)
                progress.add(len(batch.is_real))
                if vocabulary and len(shown) < num_examples:
                    kept = range(min(len(batch.is_real), num_examples - len(shown)))
                    settings = files.manifest and files.manifest["settings"]
                    next_sentence = settings and settings.get("next_sentence")
                    shown += [(batch, row, vocabulary.tokens, next_sentence) for row in kept]
            shard = files.shards().get(os.path.basename(path))
            if shard and rows < remaining and rows != shard["rows"]:
                raise InputError(f"{path}: found {rows} records; expected {shard['rows']}")
            remaining -= rows
    return statistics, shown


def _widths(shape: record_batches.Shape) -> str:
    return ", ".join(f"{name} [{width}]" for name, (width, _) in shape.items())


def _vocabulary(files: RecordFiles, vocab_file: str | None) -> Vocabulary | None:
    path = vocab_file or files.vocab_file()
    return Vocabulary(load_vocab(path)) if path else None


def manifest_statistics(found: list[RecordFiles]) -> dict[str, Any]:
    """Collects the corpus statistics of the manifests; returns {} if there is no manifest.

    Returns:
        "documents" and "sentences", the sums over the manifests; "next_sentence", the setting in
        the first manifest; and "odd", the counts of input that is empty, malformed or too long, as
        `OddInput.to_dict` returns them.

    Raises:
        InputError: a count in a manifest is not a number.
    """
    with_manifest = [files for files in found if files.manifest]
    if not with_manifest:
        return {}
    odd, counts = OddInput(), dict.fromkeys(("documents", "sentences"), 0)
    for each in with_manifest:
        try:
            for entry in each.manifest["inputs"]:
                odd.merge(entry.get("odd", {}))
            for name in counts:
                counts[name] += each.manifest["counts"].get(name, 0)
        except (KeyError, TypeError, AttributeError) as error:
            path = os.path.join(each.folder, MANIFEST)
            raise InputError(
                f"{path}: not a manifest of create_pretraining_data: {error!r:.80}"
            ) from None
    next_sentence = with_manifest[0].manifest["settings"]["next_sentence"]
    return {**counts, "next_sentence": next_sentence, "odd": odd.to_dict()}


def report(statistics: dict[str, Any]) -> Iterator[str]:
    """Formats statistics as lines of text.

    `statistics` has the results of both `manifest_statistics` and `Statistics.to_dict`.
    """

    def share(name: str, unit: str) -> str:
        return "" if statistics.get(name) is None else f"{100 * statistics[name]:.2f}% {unit}"

    def spread(name: str) -> str:
        values = dict(statistics[name])
        mean = values.pop("mean")
        return f"mean {mean:.1f}; " + ", ".join(f"{key} {value}" for key, value in values.items())

    if "documents" in statistics:
        documents, sentences = statistics["documents"], statistics["sentences"]
        yield f"documents          {documents:,} with {sentences:,} sentences"
        for kind, entry in statistics["odd"].items():
            singular, plural, handling = KINDS[kind]
            count = entry["count"]
            yield f"irregular input    {count:,} {singular if count == 1 else plural}, {handling}"
    yield f"examples           {statistics['examples']:,} in {statistics['rows']:,} rows"
    if not statistics["rows"]:
        return
    unknown = share("unknown_share", "[UNK]")
    yield f"tokens             {statistics['tokens']:,}" + (unknown and f", {unknown}")
    yield f"padding            {share('padding_share', 'of all positions')}"
    names = {
        "length": "tokens/example",
        "length_a": "tokens in A",
        "length_b": "tokens in B",
        "examples_per_row": "examples/row",
        "predictions_per_row": "predictions/row",
    }
    for name, words in names.items():
        if name in statistics:
            yield f"{words:18} {spread(name)}"
    if "predicted_share" in statistics:
        yield f"predicted          {share('predicted_share', 'of tokens')}"
        kinds = [
            share("mask_share", "[MASK]"),
            share("random_share", "random"),
            share("replaced_share", "replaced ([MASK] or random; --vocab_file separates them)"),
            share("kept_share", "kept"),
        ]
        yield f"of these           {', '.join(filter(None, kinds))}"
        if partly := share("partly_predicted_words_share", "of words with a prediction"):
            yield f"partly predicted   {partly}"
    else:
        yield "predicted          masks are generated during training"
    if statistics.get("next_sentence") != "none":
        meaning = {"random": "not next", "order": "swapped"}.get(
            statistics.get("next_sentence"), "label 1"
        )
        yield f"next sentence      {share('label_1_share', meaning)}"
    for name, words in (("unmasked", "the same tokens"), ("masked", "the same tokens and masks")):
        if f"duplicates_{name}" in statistics:
            yield f"duplicates         {statistics[f'duplicates_{name}']:,} examples with {words}"


def use_color(choice: str) -> bool:
    """Returns whether to color the output; `choice` is "always", "never" or "auto".

    "auto" means on a terminal, unless the environment variable NO_COLOR is set.
    """
    if choice == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return choice == "always"


def define_flags(define: Definitions) -> None:
    """Defines the flags of this program."""
    define.string("input_file", None, "Comma-separated list of folders, record files and globs.")
    define.string("vocab_file", None, "Vocabulary file; default: the one next to the manifest.")
    define.integer("num_examples", 3, "Number of records to show.", lower_bound=0)
    define.integer(
        "max_examples", 0, "Maximum number of records to read; 0 reads all.", lower_bound=0
    )
    define.enum(
        "color", "auto", ("auto", "always", "never"), "Whether to use colors; auto: on a terminal."
    )
    define.boolean("json", False, "Print the statistics as JSON, without examples.")
    define.require("input_file")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Verifies the record files, and prints their statistics and examples."""
    reject_arguments(arguments)
    found = find_record_files(flags.input_file, include_unlisted=True)
    verify_all(found)
    start_tensorflow()
    num_examples = 0 if flags.json else flags.num_examples
    collected, shown = read_all(found, flags.vocab_file, num_examples, flags.max_examples)
    statistics = manifest_statistics(found) | collected.to_dict()
    if flags.json:
        print(json.dumps(statistics, indent=2, ensure_ascii=False))
        return
    print(*report(statistics), sep="\n")
    if num_examples and not shown and statistics["rows"]:
        print("\nNo vocabulary found next to the files; use --vocab_file to show examples as text")
    for batch, row, vocab, next_sentence in shown:
        lines = record_text.describe(batch, row, vocab, next_sentence, use_color(flags.color))
        print("", *lines, sep="\n")


PROGRAM = Program("inspect-tfrecords", __doc__, define_flags, main)
