"""Checks that record files have not changed since the run started, and match their manifests."""

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
    """Checks all record files, and returns their checksums for run.json; all workers must call it.

    Each worker reads its share of the files, except those whose size and time of modification have
    not changed since the run last started.

    Returns:
        {path: {"bytes", "modified_ns", "sha256"}}.

    Raises:
        InputError: a checksum is not that of the manifest or of the run's start, or a file cannot
            be read. It is raised on all workers.
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
