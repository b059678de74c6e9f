r"""Creates a dataset of masked-LM and next-sentence examples from raw text.

    keras-bert create-pretraining-data --input_file='corpus/*.txt' --vocab_file=vocab.txt \
        --output_dir=dataset

    keras-bert create-pretraining-data --input_file=books --input_format=prose \
        --vocab_file=vocab.txt --output_dir=dataset --max_seq_length=32 \
        --max_predictions_per_seq=5 --dynamic

The output directory holds records-NNNNN-of-NNNNN.tfrecord, a copy of the vocabulary (vocab.txt) and
manifest.json, which lists the settings, the inputs, the counts and a checksum for each shard. Until
the dataset is complete, all files are in the subdirectory .building; manifest.json is written last.
An interrupted run is resumed with the same command, which creates only the missing shards.

--dask_scheduler=tcp://HOST:8786 uses the workers of a Dask cluster (extra [dask]), with input and
output in folders that all of them share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from absl.flags import FlagValues

from data_tools.build import create_pretraining_data
from data_tools.jobs import dask_executor
from data_tools.settings import CorpusOptions, Settings, settings_of
from keras_bert.errors import InputError
from keras_bert.options import advanced, option
from keras_bert.programs.program import Program, reject_arguments


@dataclass(frozen=True)
class BuildOptions(CorpusOptions):
    """The options of the program that are not settings of the dataset."""

    output_dir: str = option("", "Output folder of the dataset.", required=True)
    num_workers: int = advanced(0, "Number of local processes; 0 uses one per processor.", min=0)
    dask_scheduler: str = advanced(
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
    (BuildOptions, Settings),
    main,
    resumable=True,
)
