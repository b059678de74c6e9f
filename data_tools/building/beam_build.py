"""Builds a dataset on Apache Beam, with the same bytes as a local build, on any runner.

The build runs two pipelines:

    input files -> one manifest entry per file                                        (the plan)
    input files -> (shard, (digest, text)) -> GroupByKey -> a TFRecord file and its note per shard

The workers and this process exchange data only through the folder .building in the output
directory, which all of them must be able to access. The second pipeline creates only the shards
that have no note there. Work that Beam repeats creates the same files again.
"""

import argparse
import contextlib
import functools
import io
import logging as std_logging
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import runner as beam_runners
from apache_beam.runners.portability.portable_runner import PortableRunner

from data_tools.building import beam_files, build, partition, shards
from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.odd_input import OddInput
from data_tools.examples import tfrecord_writing
from data_tools.settings import Settings
from keras_bert.common.errors import InputError
from keras_bert.data import record_files

_INPUTS = "inputs.json"
_EMPTY = (b"", b"")  # placeholder that creates a shard without documents
_BLANK = b"\n"

# Limits a worker to one shard in memory, regardless of the number of Beam threads.
_one_shard = threading.Lock()


def build_on_beam(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    runner: str,
    options: Sequence[str],
) -> dict[str, Any]:
    """Creates a dataset on Apache Beam, resumes an unfinished one, or finds it finished.

    Returns the manifest. All paths can be on any of Beam's file systems. Every worker must be able
    to access the files of `input_file`, a comma-separated list of files, globs and folders, and
    `output_dir`, but not `vocab_file`. `options` are options of the runner, as `--name=value`.

    Raises:
        InputError: if the input is invalid, or if `output_dir` holds a dataset made with other
            settings or started with other package versions.
    """
    beam_options = _beam_options(runner, options)
    output_dir = output_dir.rstrip("/") or "/"
    inputs = beam_files.find_input_files(input_file)
    vocab = beam_files.read_bytes(vocab_file)
    if not beam_files.is_local(vocab_file):
        vocab_file = _local_copy(vocab)
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
        plan = _plan(requested, output_dir, building, beam_options)
        beam_files.write_bytes(f"{building}/{build.VOCAB}", vocab)
        _make_shards(plan, building, output_dir, vocab, beam_options)
        return _finish(plan, building, output_dir)


def _beam_options(runner: str, options: Sequence[str]) -> PipelineOptions:
    """Parses the options of a runner; converts Beam's error output to an `InputError`."""
    if runner.lower() in ("direct", "directrunner"):
        # By default, Beam downloads Prism for this runner, which does not support
        # --direct_running_mode. --allow_unsafe_triggers prevents that and has no other effect on a
        # pipeline without triggers. --default_sdk_harness_log_level silences the workers on stderr.
        # If an option is given twice, the later one applies.
        options = ["--allow_unsafe_triggers", "--default_sdk_harness_log_level=ERROR", *options]
    try:
        created = beam_runners.create_runner(runner)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"--runner={runner}: {error}") from None
    stderr = io.StringIO()
    parsers: list[argparse.ArgumentParser] = []
    try:
        with contextlib.redirect_stderr(stderr):
            parsed = PipelineOptions([*options, f"--runner={runner}"])
            # Beam parses the options in this call, and would only log a warning for unknown ones.
            std_logging.disable(std_logging.WARNING)
            parsed.get_all_options(add_extra_args_fn=parsers.append)
            _, unknown = parsers[0].parse_known_args(options)
    except SystemExit:
        line = stderr.getvalue().strip().rsplit("\n", 1)[-1]
        raise InputError(f"options after --: {line.split('error: ', 1)[-1]}") from None
    finally:
        std_logging.disable(std_logging.NOTSET)
    # A job server (Flink, Spark) may have additional options, which are requested later.
    if unknown and not isinstance(created, PortableRunner):
        raise InputError(f"options after --: {runner} has no option {unknown[0]!r}")
    return parsed


def _find_finished(output_dir: str, requested: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if the requested dataset is finished."""
    manifest_file = f"{output_dir}/{record_files.MANIFEST}"
    if not beam_files.exists(manifest_file):
        return None
    manifest = beam_files.read_json(manifest_file)
    build.check_finished(output_dir, *_without_remote(output_dir, manifest, requested))
    return manifest


def _folder(output_dir: str) -> contextlib.AbstractContextManager[str]:
    """Provides the folder .building; a local one is locked against other builds."""
    if beam_files.is_local(output_dir):
        return build.locked_folder(output_dir)
    building = f"{output_dir}/{build.BUILDING}"
    beam_files.make_folder(building)
    return contextlib.nullcontext(building)


def _plan(
    requested: dict[str, Any], output_dir: str, building: str, options: PipelineOptions
) -> dict[str, Any]:
    """Counts the documents of all input files, or reads the plan of an earlier build."""
    plan_file = f"{building}/{build.PLAN}"
    if beam_files.exists(plan_file):
        plan = beam_files.read_json(plan_file)
        build.check_resumable(output_dir, *_without_remote(output_dir, plan, requested))
        return plan
    build.reject_unlisted_files(output_dir, list(beam_files.list_sizes(output_dir, ".tfrecord")))
    inputs_file = f"{building}/{_INPUTS}"
    beam_files.remove(inputs_file)  # left by a build that was killed while reading

    settings = Settings(**requested["settings"])
    files = list(enumerate(entry["file"] for entry in requested["inputs"]))
    with _pipeline(options) as pipeline:
        entries = pipeline | "files" >> beam.Create(files) | beam.Reshuffle()
        entries |= "read" >> beam.Map(_describe_file, settings.reading())
        entries |= "all" >> beam.combiners.ToList()
        entries |= "note" >> beam.Map(_write_entries, inputs_file)
    inputs, odd = [], OddInput()
    described = beam_files.read_json(inputs_file)
    for (_, entry), found in zip(described, requested["inputs"], strict=True):
        if "error" in entry:
            raise InputError(entry["error"])
        inputs.append(found | entry)
        odd.merge(entry["odd"])
    odd.log()
    plan = build.make_plan(requested, inputs, partition.default_num_buckets(requested["inputs"]))
    beam_files.write_json(plan_file, plan)
    return plan


def _without_remote(
    output_dir: str, existing: dict[str, Any], requested: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compares the input files that only Beam can open; returns both dictionaries without them."""
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


def _describe_file(numbered: tuple[int, str], reading: Reading) -> tuple[int, dict[str, Any]]:
    """Reads a file and returns its manifest entry.

    An `InputError` is returned in the entry, not raised, so that Beam does not repeat the work.
    """
    number, path = numbered
    odd = OddInput()
    num_documents = num_sentences = text_bytes = longest = 0
    try:
        for text in read_texts(path, reading, odd, beam_files.open_file):
            sentences = text.count("\n") + 1
            num_documents += 1
            num_sentences += sentences
            text_bytes += len(text.encode())
            longest = max(longest, sentences)
        checksum = beam_files.sha256(path)
    except InputError as error:
        return number, {"error": str(error)}
    return number, {
        "sha256": checksum,
        "documents": num_documents,
        "sentences": num_sentences,
        "odd": odd.to_dict(),
        "text_bytes": text_bytes,
        "longest_document": longest,
    }


def _write_entries(entries: list[tuple[int, dict[str, Any]]], path: str) -> None:
    beam_files.write_json(path, sorted(entries, key=lambda entry: entry[0]))


def _make_shards(
    plan: dict[str, Any], building: str, output_dir: str, vocab: bytes, options: PipelineOptions
) -> None:
    """Creates the missing shards."""
    settings = Settings(**plan["settings"])
    notes = _read_notes(plan, building)
    # Shards are in the output directory if a build was killed during the final moves.
    sizes = [beam_files.list_sizes(folder, ".tfrecord") for folder in (building, output_dir)]
    complete = {note["index"] for note in notes if build.has_recorded_size(note, sizes)}
    missing = [index for index in range(settings.num_shards) if index not in complete]
    if not missing:
        return
    files = [(entry["file"], entry["documents"], entry["sentences"]) for entry in plan["inputs"]]
    with _pipeline(options) as pipeline:
        documents = (
            pipeline
            | "files" >> beam.Create(files)
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_documents, settings, frozenset(missing))
        )
        # A shard without documents also becomes a file.
        every_shard = pipeline | "shards" >> beam.Create([(index, _EMPTY) for index in missing])
        (
            (documents, every_shard)
            | beam.Flatten().with_output_types(tuple[int, tuple[bytes, bytes]])
            | beam.GroupByKey()
            | "write" >> beam.Map(_write_shard, building, vocab, settings)
        )


def _read_notes(plan: dict[str, Any], building: str) -> list[dict[str, Any]]:
    """Reads the existing notes of the plan's shards."""
    num_shards = plan["settings"]["num_shards"]
    existing = beam_files.list_sizes(building, ".tfrecord.json")
    names = [
        tfrecord_writing.shard_name(index, num_shards) + ".json" for index in range(num_shards)
    ]
    return [beam_files.read_json(f"{building}/{name}") for name in names if name in existing]


def _documents(
    file: tuple[str, int, int], settings: Settings, missing: frozenset[int]
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yields (shard, (digest, text)) for the documents of a file whose shards are missing."""
    path, *planned = file
    num_documents = num_sentences = 0
    for text in read_texts(path, settings.reading(), OddInput(), beam_files.open_file):
        num_documents += 1
        num_sentences += text.count("\n") + 1
        content = text.encode()
        digest = partition.document_digest(content, settings.random_seed)
        shard = partition.bucket_of(digest, settings.num_shards)
        if shard in missing:
            yield shard, (digest, content)
    if [num_documents, num_sentences] != planned:
        raise InputError(f"{path}: the content changed during the build")


def _write_shard(
    group: tuple[int, Iterable[tuple[bytes, bytes]]],
    building: str,
    vocab: bytes,
    settings: Settings,
) -> None:
    """Creates one shard, and its note when the shard is in place."""
    index, documents = group
    with _one_shard, tempfile.TemporaryDirectory() as folder:
        ordered = sorted(document for document in documents if document != _EMPTY)
        texts = [text.split(_BLANK) for _, text in ordered]
        del ordered
        name = tfrecord_writing.shard_name(index, settings.num_shards)
        path = os.path.join(folder, name)
        note = shards.write_shard_of(texts, index, _local_copy(vocab), settings, path)
        beam_files.upload(path, f"{building}/{name}")
        beam_files.write_json(f"{building}/{name}.json", note)


@functools.lru_cache(maxsize=1)
def _vocab_folder(vocab: bytes) -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="keras_bert-")  # exists until this process ends
    with open(os.path.join(folder.name, build.VOCAB), "wb") as file:
        file.write(vocab)
    return folder


def _local_copy(vocab: bytes) -> str:
    """Returns the path of a local file with this content, the same for every call."""
    return os.path.join(_vocab_folder(vocab).name, build.VOCAB)


@contextlib.contextmanager
def _pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Provides a pipeline that runs at the end of the block; raises `InputError` for bad input."""
    try:
        pipeline = beam.Pipeline(options=options)
    except ValueError as error:  # for example without --project, which Dataflow requires
        raise InputError(f"options after --: {error}") from None
    try:
        with pipeline:
            yield pipeline
    except Exception as error:
        # Beam passes on a worker's exception as text.
        messages = re.findall(r"InputError: (.*)", str(error))
        if isinstance(error, InputError):
            messages = [str(error)]
        if messages:
            raise InputError(re.sub(r" \[while running .*", "", messages[-1])) from None
        if isinstance(error, RuntimeError) and "Traceback" not in str(error):
            raise InputError(f"Apache Beam failed: {error}") from None  # raised by the runner
        raise


def _finish(plan: dict[str, Any], building: str, output_dir: str) -> dict[str, Any]:
    """Moves a complete dataset to the output directory and writes its manifest."""
    notes = _read_notes(plan, building)
    try:
        manifest = build.make_manifest(plan, notes)
    except InputError:
        beam_files.remove_folder(building)  # Nothing here can be resumed.
        raise
    # Files missing here were moved before an earlier build was killed.
    names = [*beam_files.list_sizes(building, ".tfrecord"), build.VOCAB]
    beam_files.move(
        [f"{building}/{name}" for name in names], [f"{output_dir}/{name}" for name in names]
    )
    build.check_moved(output_dir, notes, beam_files.list_sizes(output_dir, ".tfrecord"))
    beam_files.write_json(f"{output_dir}/{record_files.MANIFEST}", manifest)
    beam_files.remove_folder(building)
    return manifest
