r"""Creates a dataset of masked-LM and next-sentence examples from raw text.

    keras-bert create-pretraining-data --input_file='corpus/*.txt' \
        --vocab_file=vocab.txt --output_dir=dataset --max_seq_length=128

The output directory holds records-NNNNN-of-NNNNN.tfrecord, a copy of the vocabulary (vocab.txt) and
manifest.json, which lists the settings, the inputs, the counts and a checksum for each shard. Until
the dataset is complete, all files are in the subdirectory .building; manifest.json is written last.
An interrupted run is resumed with the same command, which creates only the missing shards.

To use the workers of a Dask cluster (extra [dask]), with input and output in folders that all of
them share:

    keras-bert create-pretraining-data ... --dask_scheduler=tcp://HOST:8786
"""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import find_input_files
from data_tools.jobs import dask_executor, default_num_workers
from data_tools.settings import (
    Settings,
    UserTokenOptions,
    settings_of,
)
from keras_bert.errors import InputError
from keras_bert.options import option
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.runs import check_not_input_folder


def create_pretraining_data(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int = 0,
    executor: Executor | None = None,
    log_odd_input: bool = True,
) -> dict[str, Any]:
    """Creates a dataset, or resumes an unfinished one; returns its manifest.

    The bytes of the dataset depend only on the text, the vocabulary and `settings`. Therefore, a
    dataset that was started with other workers can be finished with these.

    Args:
        input_file: comma-separated list of files, globs and folders.
        output_dir: folder of the dataset.
        vocab_file: vocabulary file with one token per line.
        settings: settings of the dataset.
        num_workers: number of local processes, or of the executor's workers; 0 is the number of
            processors of this machine.
        executor: runs the work instead of local processes, for example that of a Dask client. Its
            workers must share a file system with this machine.
        log_odd_input: whether input that is empty, malformed or too long is logged.

    Raises:
        InputError: if the input is invalid or in `output_dir`, or if `output_dir` holds a dataset
            made with other settings or started with other package versions. Existing files stay
            unchanged.
    """
    from data_tools.build import build_dataset  # It imports TensorFlow.

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
    input_files = find_input_files(input_file, settings.input_format)
    if executor is not None:  # The workers may run in other folders.
        input_files, output_dir = (
            list(map(os.path.abspath, input_files)),
            os.path.abspath(output_dir),
        )
    num_workers = num_workers or default_num_workers()
    return build_dataset(
        input_files, output_dir, vocab_file, settings, num_workers, executor, log_odd_input
    )


@dataclass(frozen=True)
class BuildOptions:
    """The options of the program that are not settings of the dataset."""

    input_file: str = option(
        "", "Comma-separated list of text files, globs and folders.", required=True
    )
    output_dir: str = option("", "Output folder of the dataset.", required=True)
    vocab_file: str = option("", "Vocabulary file with one token per line.", required=True)
    num_workers: int = option(0, "Number of local processes; 0 uses one per processor.", min=0)
    dask_scheduler: str = option(
        "",
        "Address of the scheduler of a Dask cluster, such as tcp://HOST:8786, whose workers run "
        "the work instead of local processes.",
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Creates the dataset that the flags describe."""
    reject_arguments(arguments)
    settings = settings_of(Settings, flags)
    paths = flags.input_file, flags.output_dir, flags.vocab_file
    if not flags.dask_scheduler:
        create_pretraining_data(*paths, settings, flags.num_workers)
        return
    if flags.num_workers:
        raise InputError(
            f"--num_workers={flags.num_workers} with --dask_scheduler: expected 0, because the "
            "cluster determines the number of workers"
        )
    with dask_executor(flags.dask_scheduler) as (executor, num_threads):
        create_pretraining_data(*paths, settings, num_threads, executor)


PROGRAM = Program(
    "create-pretraining-data",
    __doc__,
    (BuildOptions, Settings, UserTokenOptions),
    main,
    resumable=True,
)
