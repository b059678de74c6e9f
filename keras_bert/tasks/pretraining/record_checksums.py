"""Checks that the records of a run are those it was started with, and those of their manifests."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.data.checksums import file_checksums, find_changes
from keras_bert.tasks.pretraining.inputs import PretrainingInputs
from keras_bert.training.cluster import gather, share_of
from keras_bert.training.progress import progress
from keras_bert.training.run_record import RUN_FILE, read_files


def check_records(
    inputs: PretrainingInputs, strategy: tf.distribute.Strategy, output_dir: Path
) -> dict[str, Mapping[str, object]]:
    """Returns the checksums of all record files for run.json; all workers must call it.

    Each worker reads its share of the files, except those that have not changed since the run last
    started. InputError is raised on all workers if a checksum is not the expected one.
    """
    index, workers = share_of(strategy)
    paths = list(dict.fromkeys([*inputs.data.files, *inputs.held_out.files]))
    own, found, message = paths[index::workers], {}, ""
    try:
        earlier = read_files(output_dir)
        total = sum(Path(path).stat().st_size for path in own)
        with progress("checking records", total, "bytes", silent=index > 0) as advance:
            found = file_checksums(own, earlier, advance)
        for data in (inputs.data, inputs.held_out):
            for change in find_changes(data, found, earlier, output_dir / RUN_FILE):
                message = message or change
    except (InputError, OSError) as error:
        message = str(error)
    together = {}
    for problem, checksums in gather(strategy, [message, found]):
        if problem:
            raise InputError(problem)
        together |= checksums
    return dict(sorted(together.items()))
