r"""Creates a dataset of masked-LM and next-sentence examples from raw text.

    keras-bert create-pretraining-data --input_file='corpus/*.txt' \
        --vocab_file=vocab.txt --output_dir=dataset --max_seq_length=128

The output directory holds records-NNNNN-of-NNNNN.tfrecord, a copy of the vocabulary (vocab.txt) and
manifest.json, which lists the settings, the inputs, the counts and a checksum for each shard. Until
the dataset is complete, all files are in the subdirectory .building; manifest.json is written last.
An interrupted run is resumed with the same command, which creates only the missing shards.

To run on Apache Beam (install the extra [beam]), pass the runner's own options after --:

    keras-bert create-pretraining-data ... --runner=DirectRunner -- \
        --direct_running_mode=multi_processing --direct_num_workers=2

On a Dask cluster (extra [dask]), with input and output on a file system that all workers share:

    keras-bert create-pretraining-data ... --runner=DaskRunner -- \
        --dask_client_address=tcp://HOST:8786
"""

if __name__ == "__main__":  # Before the imports, so that Ctrl-C ends them with one line.
    from keras_bert.programs.start import start

    start("data_tools.create_pretraining_data")

import dataclasses
import importlib.util
import logging as std_logging
from collections.abc import Sequence
from typing import Any

from absl import logging
from absl.flags import FlagValues

from data_tools import reading_flags, tokenizer_flags
from data_tools.building.local_build import build_locally
from data_tools.corpus.documents import find_input_files
from data_tools.corpus.odd_input import KINDS, OddInput
from data_tools.settings import Settings
from keras_bert.common.errors import InputError
from keras_bert.data.record_files import NEXT_SENTENCE
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import check_not_input_folder

LOCAL = "local"


@dataclasses.dataclass(frozen=True)
class Runner:
    """The engine that creates a dataset: `local`, or an Apache Beam runner.

    `options` are the options of an Apache Beam runner, as `--name=value`.
    """

    name: str = LOCAL
    options: Sequence[str] = ()


def create_pretraining_data(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int = 0,
    runner: Runner = Runner(),
    log_odd_input: bool = True,
) -> dict[str, Any]:
    """Creates a dataset, or resumes an unfinished one; returns its manifest.

    `input_file` is a comma-separated list of files, globs and directories; `num_workers` 0 uses one
    local process per processor. A local build logs input that is empty, malformed or too long, if
    `log_odd_input` is true. The bytes of the dataset depend only on the text, the vocabulary
    and `settings`. Therefore, a dataset that was started on one runner can be finished on another.

    Raises:
        InputError: if the input is invalid or in `output_dir`, or if `output_dir` holds a dataset
            made with other settings or started with other package versions. Existing files stay
            unchanged.
    """
    check_not_input_folder(output_dir, map(str.strip, input_file.split(",")))
    if num_workers < 0:
        raise InputError(f"--num_workers={num_workers}: expected at least 0")
    predictions = round(settings.max_seq_length * settings.masked_lm_prob)
    if settings.pack and settings.max_predictions_per_seq < predictions:
        logging.warning(
            "--max_predictions_per_seq=%d is too small to fill the rows of --pack, because it "
            "limits the predictions of all examples in a row; "
            "use --max_predictions_per_seq=%d or more",
            settings.max_predictions_per_seq,
            predictions,
        )
    if runner.name == LOCAL:
        if runner.options:
            raise InputError(
                f"options after --: {' '.join(runner.options)!r} with --runner={LOCAL}; expected "
                "an Apache Beam runner or no options"
            )
        input_files = find_input_files(input_file, settings.input_format)
        manifest = build_locally(
            input_files, output_dir, vocab_file, settings, num_workers, log_odd_input
        )
    else:
        if num_workers:
            raise InputError(
                f"--num_workers={num_workers} with --runner={runner.name}: expected an option of "
                "the runner after --, such as --direct_num_workers"
            )
        if importlib.util.find_spec("apache_beam") is None:
            raise InputError(
                f"--runner={runner.name}: Apache Beam is not installed; expected the extra beam: "
                "pip install 'keras-bert-pipeline[beam]'"
            )
        # Silences Beam's own log lines, and its warnings about optional packages during import.
        std_logging.getLogger("apache_beam").setLevel(std_logging.WARNING)
        std_logging.disable(std_logging.WARNING)
        try:
            from data_tools.building.beam_build import build_on_beam
        finally:
            std_logging.disable(std_logging.NOTSET)
        manifest = build_on_beam(
            input_file, output_dir, vocab_file, settings, runner.name, runner.options
        )
    _report(output_dir, manifest, log_odd_input)
    return manifest


def _report(output_dir: str, manifest: dict[str, Any], log_odd_input: bool) -> None:
    """Logs the size of the dataset, and how much input was empty, malformed or too long."""
    odd = OddInput()
    for entry in manifest["inputs"]:
        odd.merge(entry["odd"])
    totals = [
        f"{entry['count']} {KINDS[kind][entry['count'] > 1]}"
        for kind, entry in odd.to_dict().items()
    ]
    if totals and log_odd_input:
        logging.warning(
            'input that is empty, malformed, too long or probably of another format: %s; "odd" in '
            "manifest.json lists the first places in each file",
            ", ".join(totals),
        )
    counts, num_shards = manifest["counts"], len(manifest["shards"])
    rows = f" in {counts['rows']} rows" if manifest["settings"]["pack"] else ""
    logging.info(
        "%s: %d examples%s from %d documents, in %d %s",
        output_dir,
        counts["examples"],
        rows,
        counts["documents"],
        num_shards,
        "shard" if num_shards == 1 else "shards",
    )


def define_flags(define: Definitions) -> None:
    """Defines the flags of this program; the defaults are those of Google's BERT."""
    default = Settings()
    define.string("input_file", None, "Comma-separated list of text files, globs and folders.")
    define.string("output_dir", None, "Output folder of the dataset.")
    define.string("vocab_file", None, "Vocabulary file with one token per line.")
    reading_flags.define_flags(define)
    tokenizer_flags.define_flags(define)
    define.boolean(
        "do_whole_word_mask", default.do_whole_word_mask, "Mask all tokens of a word together."
    )
    define.integer(
        "ngram",
        default.ngram,
        "Mask runs of up to this many tokens, or words with --do_whole_word_mask; a run of n has a "
        "probability proportional to 1/n.",
    )
    define.enum(
        "next_sentence",
        default.next_sentence,
        NEXT_SENTENCE,
        "random: predict whether B is the text after A (BERT). order: predict whether A and B are "
        "swapped (ALBERT). none: no pairs; rows are filled with sentences across document "
        "boundaries (RoBERTa).",
    )
    define.boolean(
        "dynamic",
        default.dynamic,
        "Store no masks; training generates new ones at every step.",
    )
    define.boolean("pack", default.pack, "Put several short examples in one row.")
    define.integer(
        "max_seq_length",
        default.max_seq_length,
        "Number of tokens per row, including special tokens.",
    )
    define.integer(
        "max_predictions_per_seq",
        default.max_predictions_per_seq,
        "Maximum number of tokens to predict per row.",
    )
    define.integer("random_seed", default.random_seed, "Random seed.", -(2**63), 2**63 - 1)
    define.integer(
        "dupe_factor",
        None,
        "How many times each document is used; the default is 10, or 1 with --dynamic.",
    )
    define.number("masked_lm_prob", default.masked_lm_prob, "Fraction of the tokens to predict.")
    define.number(
        "short_seq_prob",
        default.short_seq_prob,
        "Fraction of the documents with shorter examples.",
    )
    define.integer("num_shards", 0, "Number of output files; 0 derives it from the corpus size.")
    define.integer("num_workers", 0, "Number of local processes; 0 uses one per processor.")
    define.string(
        "runner",
        LOCAL,
        "local, or an Apache Beam runner: DirectRunner, DaskRunner, DataflowRunner, FlinkRunner, "
        "SparkRunner, ... The options of the runner follow after --.",
    )
    define.require("input_file", "output_dir", "vocab_file", "runner")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Creates the dataset that the flags describe."""
    # The arguments are the options of a runner, which follow "--". absl removes the "--" itself.
    if arguments and not arguments[0].startswith("--"):
        reject_arguments(arguments)
    settings = tokenizer_flags.settings_of(Settings, flags)
    create_pretraining_data(
        flags.input_file,
        flags.output_dir,
        flags.vocab_file,
        settings,
        flags.num_workers,
        Runner(flags.runner, arguments),
    )


PROGRAM = Program("create-pretraining-data", __doc__, define_flags, main, resumable=True)
