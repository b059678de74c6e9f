"""Builds a dataset on any runner of Apache Beam, with the same bytes as a local build.

The build runs two pipelines:

    input files -> one manifest entry per file                       the plan (`beam_plan`)
    input files -> (shard, (digest, text)) -> GroupByKey             the shards (`beam_shards`)
                -> for each shard, a TFRecord file and its note, a JSON file with its counts

The workers and this process exchange data only through the folder .building in the output
directory, which all of them must be able to access. The second pipeline creates only the shards
whose note is missing in .building. Work that Beam repeats creates the same files again.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from data_tools.building import beam_files, beam_plan, beam_runners, beam_shards, build
from data_tools.settings import Settings
from keras_bert.common.errors import InputError
from keras_bert.data import record_files


def build_on_beam(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    runner: str,
    options: Sequence[str],
) -> dict[str, Any]:
    """Creates a dataset on Apache Beam, or resumes an unfinished one; returns its manifest.

    All paths can be on any of Beam's file systems. All workers must be able to access `input_file`
    (a comma-separated list of files, globs and folders) and `output_dir`. Only this process reads
    `vocab_file`. `options` are the options of the runner, as `--name=value`.

    Raises:
        InputError: see `create_pretraining_data`.
    """
    beam_options = beam_runners.parse_options(runner, options)
    output_dir = output_dir.rstrip("/") or "/"
    inputs = beam_files.find_input_files(input_file, settings.input_format)
    vocab = beam_files.read_bytes(vocab_file)
    if not beam_files.is_local(vocab_file):
        vocab_file = beam_shards.local_vocab(vocab)
    requested = build.requested_dataset(inputs, vocab_file, settings)
    if manifest := _find_finished(output_dir, requested):
        if beam_files.is_local(output_dir):
            build.remove_leftovers(output_dir)
        else:
            beam_files.remove_folder(f"{output_dir}/{build.BUILDING}")
        return manifest
    with _folder(output_dir) as building:
        if manifest := _find_finished(output_dir, requested):  # finished by another build
            return manifest
        plan = beam_plan.find_or_make_plan(requested, output_dir, building, beam_options)
        beam_files.write_bytes(f"{building}/{build.VOCAB}", vocab)
        beam_shards.make_shards(plan, building, output_dir, vocab, beam_options)
        return _finish(plan, building, output_dir)


def _find_finished(output_dir: str, requested: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if the requested dataset is finished, else None.

    Raises an `InputError` if the output directory holds another finished dataset.
    """
    manifest_file = f"{output_dir}/{record_files.MANIFEST}"
    if not beam_files.exists(manifest_file):
        return None
    manifest = beam_files.read_json(manifest_file)
    build.check_finished(output_dir, *beam_plan.without_remote(output_dir, manifest, requested))
    return manifest


def _folder(output_dir: str) -> contextlib.AbstractContextManager[str]:
    """Provides the folder .building; a local one is locked against other builds."""
    if beam_files.is_local(output_dir):
        return build.locked_folder(output_dir)
    building = f"{output_dir}/{build.BUILDING}"
    beam_files.make_folder(building)
    return contextlib.nullcontext(building)


def _finish(plan: dict[str, Any], building: str, output_dir: str) -> dict[str, Any]:
    """Moves a complete dataset to the output directory and writes its manifest."""
    notes = beam_shards.read_notes(plan, building)
    num_shards = plan["settings"]["num_shards"]
    if len(notes) < num_shards:
        raise InputError(
            f"{building}: {num_shards - len(notes)} of {num_shards} shards are missing; expected "
            "that all workers write to this folder; use an absolute path that all machines share"
        )
    try:
        manifest = build.make_manifest(plan, notes)
    except InputError:
        beam_files.remove_folder(building)  # Nothing here can be resumed.
        raise
    # Files that are no longer in .building were moved by an earlier build that was then killed.
    names = [*beam_files.list_sizes(building, ".tfrecord"), build.VOCAB]
    beam_files.move(
        [f"{building}/{name}" for name in names], [f"{output_dir}/{name}" for name in names]
    )
    build.check_moved(output_dir, notes, beam_files.list_sizes(output_dir, ".tfrecord"))
    beam_files.write_json(f"{output_dir}/{record_files.MANIFEST}", manifest)
    beam_files.remove_folder(building)
    return manifest
