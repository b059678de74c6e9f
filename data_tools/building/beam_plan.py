"""The first pipeline of a Beam build: reads the corpus and makes the plan (see `build`).

The plan holds the checksum of every input file, so that the second pipeline can check that it reads
the same content.
"""

from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from data_tools.building import beam_files, beam_runners, build, partition, versions
from data_tools.building.input_file import InputFile
from data_tools.corpus.documents import Reading
from data_tools.corpus.odd_input import OddInput
from data_tools.settings import Settings
from keras_bert.common.errors import InputError

_INPUTS = "inputs.json"


def find_or_make_plan(
    requested: dict[str, Any], output_dir: str, building: str, options: PipelineOptions
) -> dict[str, Any]:
    """Returns the plan of an earlier build, or reads all input files and makes a plan.

    `requested` is the result of `build.requested_dataset`, and `building` the folder .building.
    """
    plan_file = f"{building}/{build.PLAN}"
    if beam_files.exists(plan_file):
        plan = beam_files.read_json(plan_file)
        build.check_resumable(output_dir, *without_remote(output_dir, plan, requested))
        return plan
    build.reject_unlisted_files(output_dir, list(beam_files.list_sizes(output_dir, ".tfrecord")))
    inputs_file = f"{building}/{_INPUTS}"
    beam_files.remove(inputs_file)  # left by a build that was killed while reading

    settings = Settings(**requested["settings"])
    files = [
        (number, entry["file"]) for number, entry in partition.largest_first(requested["inputs"])
    ]
    with beam_runners.running(options) as pipeline:
        entries = pipeline | "files" >> beam.Create(files) | beam.Reshuffle()
        made_with = versions.build_versions(settings.input_format)
        entries |= "read" >> beam.Map(_describe_file, settings.reading(), made_with)
        # The default of ToList, an empty list, would be a side input, for which Dask reads the
        # corpus again.
        entries |= "all" >> beam.combiners.ToList().without_defaults()
        entries |= "note" >> beam.Map(_write_entries, inputs_file)
    inputs, odd = [], OddInput()
    described = beam_files.read_json(inputs_file)
    for (_, entry), _ in zip(described, requested["inputs"], strict=True):
        if "error" in entry:
            raise InputError(entry["error"])
        inputs.append(entry)
        odd.merge(entry["odd"])
    odd.log()
    plan = build.make_plan(requested, inputs, partition.default_num_buckets(requested["inputs"]))
    beam_files.write_json(plan_file, plan)
    return plan


def _describe_file(
    numbered: tuple[int, str], reading: Reading, made_with: Mapping[str, str]
) -> tuple[int, dict[str, Any]]:
    """Reads a file, given as (number, path); returns its number and its manifest entry.

    An `InputError` is not raised, but returned as the entry {"error": message}, so that Beam does
    not repeat the work. `made_with` are the package versions of the launching machine.
    """
    number, path = numbered
    source = InputFile(path, reading, beam_files.open_file)
    try:
        versions.check_worker(made_with)
        for _ in source.documents():
            pass
    except InputError as error:
        return number, {"error": str(error)}
    return number, source.entry()


def _write_entries(entries: list[tuple[int, dict[str, Any]]], path: str) -> None:
    beam_files.write_json(path, sorted(entries, key=lambda entry: entry[0]))


def without_remote(
    output_dir: str, existing: dict[str, Any], requested: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Removes the input files that only Beam can open from two plans or manifests.

    Raises an `InputError` if these files have changed since `existing` was written, or if
    `requested` has other ones. Returns `existing` and `requested` with only the local input files,
    which `build` compares.
    """
    kept = []
    for each in (existing, requested):
        local = [entry for entry in each["inputs"] if beam_files.is_local(entry["file"])]
        kept.append(each | {"inputs": local})
    remote = [
        {entry["file"]: entry for entry in each["inputs"] if not beam_files.is_local(entry["file"])}
        for each in (existing, requested)
    ]
    for path in sorted(remote[0].keys() | remote[1].keys()):
        old, new = remote[0].get(path), remote[1].get(path)
        if not old or not new or old["sha256"] != beam_files.sha256(path):
            change = "was added" if not old else "has changed" if new else "was removed"
            raise InputError(
                f"--output_dir={output_dir}: holds a dataset of other input files: "
                f"{path} {change}; expected the same files, or another --output_dir"
            )
    return kept[0], kept[1]
