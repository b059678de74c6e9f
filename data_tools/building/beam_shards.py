"""The second pipeline of a Beam build: reads the corpus again and creates the shards."""

import functools
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from data_tools.building import beam_files, beam_runners, build, partition, shards, versions
from data_tools.building.input_file import InputFile
from data_tools.examples import tfrecord_writing
from data_tools.settings import Settings
from keras_bert.common.errors import InputError

_EMPTY = (b"", b"")  # placeholder that creates a shard without documents
_BLANK = b"\n"

# Limits a worker to one shard in memory, regardless of the number of Beam threads.
_one_shard = threading.Lock()


def make_shards(
    plan: dict[str, Any], building: str, output_dir: str, vocab: bytes, options: PipelineOptions
) -> None:
    """Creates the shards of a plan that are neither in `building` nor in `output_dir`.

    `building` is the folder .building, and `vocab` the content of the vocabulary file.
    """
    settings = Settings(**plan["settings"])
    notes = read_notes(plan, building)
    # Shards are in the output directory if a build was killed during the final moves.
    sizes = [beam_files.list_sizes(folder, ".tfrecord") for folder in (building, output_dir)]
    complete = {note["index"] for note in notes if build.has_recorded_size(note, sizes)}
    missing = [index for index in range(settings.num_shards) if index not in complete]
    if not missing:
        return
    inputs = partition.largest_first(plan["inputs"])
    files = [(entry["file"], entry["sha256"]) for _, entry in inputs]
    with beam_runners.running(options) as pipeline:
        documents = (
            pipeline
            | "files" >> beam.Create(files)
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_documents, settings, frozenset(missing), plan["made_with"])
        )
        # A shard without documents also becomes a file.
        every_shard = pipeline | "shards" >> beam.Create([(index, _EMPTY) for index in missing])
        (
            (documents, every_shard)
            | beam.Flatten().with_output_types(tuple[int, tuple[bytes, bytes]])
            | beam.GroupByKey()
            | "write" >> beam.Map(_write_shard, building, vocab, settings, plan["made_with"])
        )


def read_notes(plan: dict[str, Any], building: str) -> list[dict[str, Any]]:
    """Reads the notes of those shards of a plan that have one in the folder .building."""
    num_shards = plan["settings"]["num_shards"]
    existing = beam_files.list_sizes(building, ".tfrecord.json")
    names = [
        tfrecord_writing.shard_name(index, num_shards) + ".json" for index in range(num_shards)
    ]
    return [beam_files.read_json(f"{building}/{name}") for name in names if name in existing]


def _documents(
    file: tuple[str, str],
    settings: Settings,
    missing: frozenset[int],
    made_with: Mapping[str, str],
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yields (shard, (digest, text)) for each document of a file that belongs to a missing shard.

    `file` is (path, SHA-256 in the plan); the content must not have changed since.
    """
    versions.check_worker(made_with)
    path, planned = file
    source = InputFile(path, settings.reading(), beam_files.open_file)
    for text in source.documents():
        digest = partition.document_digest(text, settings.random_seed)
        shard = partition.bucket_of(digest, settings.num_shards)
        if shard in missing:
            yield shard, (digest, text)
    if source.entry()["sha256"] != planned:
        raise InputError(
            f"{path}: the content changed during the build; expected the content that was read "
            f"first; restore it, or remove {build.BUILDING} in --output_dir to start again"
        )


def _write_shard(
    group: tuple[int, Iterable[tuple[bytes, bytes]]],
    building: str,
    vocab: bytes,
    settings: Settings,
    made_with: Mapping[str, str],
) -> None:
    """Creates one shard in the folder .building, and then its note.

    `group` is the index of the shard, and (digest, text) of its documents in any order.
    """
    versions.check_worker(made_with)
    index, documents = group
    with _one_shard, tempfile.TemporaryDirectory() as folder:
        ordered = sorted(document for document in documents if document != _EMPTY)
        texts = [text.split(_BLANK) for _, text in ordered]
        del ordered
        name = tfrecord_writing.shard_name(index, settings.num_shards)
        path = os.path.join(folder, name)
        note = shards.write_shard_of(texts, index, local_vocab(vocab), settings, path)
        beam_files.upload(path, f"{building}/{name}")
        beam_files.write_json(f"{building}/{name}.json", note)


@functools.lru_cache(maxsize=1)
def _vocab_folder(vocab: bytes) -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="keras_bert-")  # exists until this process ends
    with open(os.path.join(folder.name, build.VOCAB), "wb") as file:
        file.write(vocab)
    return folder


def local_vocab(vocab: bytes) -> str:
    """Returns the path of a local file with the content `vocab`, created once per process."""
    return os.path.join(_vocab_folder(vocab).name, build.VOCAB)
