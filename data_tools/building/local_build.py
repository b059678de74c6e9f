"""Builds a dataset with the processors of this machine, in the folder .building.

    input files -> temporary files by hash (`spill`) -> plan.json
    temporary files -> each shard (`shards`) -> its note, a JSON file with its counts

plan.json is written when the first step is complete, and the note of a shard when the shard is.
"""

import contextlib
import os
import resource
import shutil
import sys
from typing import Any

from absl import logging

from data_tools.building import build, partition, shards, spill
from data_tools.building.runners import default_num_workers, run_local
from data_tools.examples import tfrecord_writing
from data_tools.progress import Progress
from data_tools.settings import Settings
from keras_bert.common import files
from keras_bert.common.errors import InputError
from keras_bert.data import record_files


def build_locally(
    input_files: list[str],
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int,
    log_odd_input: bool = True,
) -> dict[str, Any]:
    """Creates a dataset with local processes, or resumes an unfinished one; returns its manifest.

    Raises:
        InputError: see `create_pretraining_data`.
    """
    num_workers = num_workers or default_num_workers()
    inputs = [{"file": path, "bytes": os.path.getsize(path)} for path in input_files]
    requested = build.requested_dataset(inputs, vocab_file, settings)
    if manifest := _find_finished(output_dir, requested):
        build.remove_leftovers(output_dir)
        return manifest
    with build.locked_folder(output_dir) as building:
        if manifest := _find_finished(output_dir, requested):  # finished by another build
            return manifest
        plan = _plan(input_files, output_dir, requested, building, num_workers, log_odd_input)
        with open(vocab_file, "rb") as file:
            files.write_bytes(os.path.join(building, build.VOCAB), file.read())
        notes = _make_shards(plan, building, output_dir, num_workers)
        return _finish(plan, notes, building, output_dir)


def _find_finished(output_dir: str, requested: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if the requested dataset is finished, else None.

    Raises an `InputError` if the output directory holds another finished dataset.
    """
    manifest_file = os.path.join(output_dir, record_files.MANIFEST)
    if not os.path.exists(manifest_file):
        return None
    manifest = files.read_json(manifest_file)
    build.check_finished(output_dir, manifest, requested)
    return manifest


def _plan(
    input_files: list[str],
    output_dir: str,
    requested: dict[str, Any],
    building: str,
    num_workers: int,
    log_odd_input: bool,
) -> dict[str, Any]:
    """Reads the corpus into temporary files, or finds the files of an earlier build.

    Returns the plan with two additional keys: num_buckets, the number of temporary files per
    process; and spilled, {name: size in bytes} of the temporary files.
    """
    plan_file = os.path.join(building, build.PLAN)
    plan = None
    if os.path.exists(plan_file):
        plan = files.read_json(plan_file)
        build.check_resumable(output_dir, plan, requested)
        if "spilled" in plan and plan["spilled"] == spill.spilled_files(building):
            return plan
        # The plan is kept, and only the temporary files are created: a build that was started on
        # Apache Beam has none, or they are damaged.
        num_buckets = plan.get("num_buckets", plan["settings"]["num_shards"])
        if plan.pop("spilled", None):
            logging.warning("%s: temporary files are damaged: reading the text again", building)
            files.write_json(plan_file, plan)
        leftovers = list(spill.spilled_files(building))
    else:
        build.reject_unlisted_files(output_dir, os.listdir(output_dir))
        num_buckets = requested["settings"]["num_shards"] or partition.default_num_buckets(
            requested["inputs"]
        )
        leftovers = os.listdir(building)
    for name in leftovers:  # left by a build that was killed while reading
        os.remove(os.path.join(building, name))

    settings = Settings(**requested["settings"])
    with Progress("reading", sum(entry["bytes"] for entry in requested["inputs"]), "B") as progress:
        target = spill.Spill(settings.reading(), settings.random_seed, num_buckets, building)
        inputs = spill.spill_documents(input_files, target, num_workers, progress, log_odd_input)
    plan = plan or build.make_plan(requested, inputs, num_buckets)
    plan |= {"num_buckets": num_buckets, "spilled": spill.spilled_files(building)}
    files.write_json(plan_file, plan)
    return plan


def _make_shards(
    plan: dict[str, Any], building: str, output_dir: str, num_workers: int
) -> list[dict[str, Any]]:
    """Creates the shards of a plan that are missing; returns the notes of all its shards."""
    settings = Settings(**plan["settings"])
    # A build that was killed may already have moved shards to the output directory.
    sizes = [_sizes(building), _sizes(output_dir)]
    notes, jobs = [], []
    for index in range(settings.num_shards):
        shard = os.path.join(building, tfrecord_writing.shard_name(index, settings.num_shards))
        note = files.read_json(shard + ".json") if os.path.exists(shard + ".json") else None
        if note and build.has_recorded_size(note, sizes):
            notes.append(note)
        else:
            vocab_file = os.path.join(building, build.VOCAB)
            jobs.append(shards.ShardJob(index, plan["num_buckets"], building, vocab_file, settings))
    with Progress("writing", None, "examples") as progress:
        for note in run_local(shards.make_shard, jobs, num_workers):
            notes.append(note)
            progress.add(note["examples"], f"{len(notes)} of {settings.num_shards} shards")
    return notes


def _sizes(folder: str) -> dict[str, int]:
    with os.scandir(folder) as found:
        return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}


def _finish(
    plan: dict[str, Any], notes: list[dict[str, Any]], building: str, output_dir: str
) -> dict[str, Any]:
    """Moves a complete dataset to the output directory and writes its manifest."""
    try:
        manifest = build.make_manifest(plan, notes)
    except InputError:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(building, build.PLAN))  # Nothing here can be resumed.
        raise
    try:
        for name in [build.VOCAB, *(note["file"] for note in notes)]:
            if os.path.exists(os.path.join(building, name)):  # Otherwise, it was moved before.
                os.replace(os.path.join(building, name), os.path.join(output_dir, name))
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror or error})"
        ) from None
    build.check_moved(output_dir, notes, _sizes(output_dir))
    files.write_json(os.path.join(output_dir, record_files.MANIFEST), manifest)
    shutil.rmtree(building, ignore_errors=True)
    # ru_maxrss is in kilobytes, but in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    this, child = (
        resource.getrusage(who).ru_maxrss // unit
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    logging.info("peak memory of the largest process: %d MiB", max(this, child))
    return manifest
