"""Builds a dataset in the folder .building, with the workers of this machine or of a cluster.

    input files -> temporary files by hash (`spill`) -> plan.json
    temporary files -> each shard (`shards`) -> its note, a JSON file with its counts
    notes -> manifest.json, in the output folder

plan.json is written when the first step is complete, and the note of a shard when the shard is. The
plan describes an unfinished build, and the manifest a finished one. Both have these keys:

    made_with  versions of the packages that affect the output
    settings   all fields of `Settings`, with the actual num_shards
    vocab      file, size, sha256
    inputs     for each file: file, bytes, sha256, documents, sentences, odd

The plan also has num_buckets, the number of temporary files per job, and spilled, the names and
sizes of the temporary files. The manifest also has format, version, counts and shards.
"""

import contextlib
import dataclasses
import os
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from absl import logging

from data_tools import shards, spill, tfrecords
from data_tools.jobs import Progress, run_jobs
from data_tools.lines import KINDS, OddInput
from data_tools.settings import Settings, build_versions, reject_other_settings, version_differences
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.files import locked
from keras_bert.pretraining import records
from keras_bert.text.settings import ids_of
from keras_bert.text.unknown_words import is_many, log_unknown_words
from keras_bert.text.vocabulary import load_vocab

_BUILDING, _PLAN, _VOCAB = ".building", "plan.json", "vocab.txt"
_LOCK = ".lock"  # .building.lock, next to .building

_TEXT_BYTES_PER_SHARD = 8 << 20
# Segment B of a random pair should be drawn from many other documents.
_DOCUMENTS_PER_SHARD = 32
# Limits for the memory of a worker, with a margin because some shards are larger by chance.
_MAX_TEXT_BYTES_PER_SHARD = 32 << 20
_MAX_SENTENCES_PER_SHARD = 500_000
_MAX_SHARDS = 1 << 16


def build_dataset(
    input_files: list[str],
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int,
    executor: Executor | None = None,
    log_odd_input: bool = True,
) -> dict[str, Any]:
    """Creates a dataset, or resumes an unfinished one; returns its manifest.

    `executor` runs the jobs instead of `num_workers` local processes; the corpus is then read in up
    to `num_workers` jobs.

    Raises:
        InputError: see `create_pretraining_data`.
    """
    tokens = load_vocab(vocab_file)
    ids_of(settings.tokenizer().user_tokens, tokens, f"--vocab_file={vocab_file}")
    requested = {
        "made_with": build_versions(settings.input_format),
        "settings": settings.to_dict(),
        "vocab": {"file": _VOCAB, "size": len(tokens), "sha256": files.sha256(vocab_file)},
        "inputs": [{"file": path, "bytes": os.path.getsize(path)} for path in input_files],
    }
    if manifest := _find_finished(output_dir, requested, log_odd_input):
        _remove_leftovers(output_dir)
        return manifest
    with locked_folder(output_dir) as building:
        # Another build may have finished it.
        if manifest := _find_finished(output_dir, requested, log_odd_input):
            return manifest
        plan = _find_plan(output_dir, building, requested)
        if not plan or "spilled" not in plan:
            plan = _read_corpus(building, plan, requested, num_workers, executor, log_odd_input)
        with open(vocab_file, "rb") as file:
            files.write_bytes(os.path.join(building, _VOCAB), file.read())
        notes = _make_shards(plan, building, output_dir, num_workers, executor)
        manifest = _finish(plan, notes, building, output_dir)
        _report(output_dir, manifest, log_odd_input)
        return manifest


# --- earlier builds ---


def _find_finished(
    output_dir: str, requested: dict[str, Any], log_odd_input: bool
) -> dict[str, Any] | None:
    """Returns the manifest if the requested dataset is finished, else None.

    Raises an `InputError` if the output folder holds another finished dataset.
    """
    manifest_file = os.path.join(output_dir, records.MANIFEST)
    if not os.path.exists(manifest_file):
        return None
    manifest = files.read_json(manifest_file)
    if manifest.get("format") != records.FORMAT:
        raise InputError(
            f"{manifest_file}: not a manifest of create-pretraining-data; expected another "
            "--output_dir"
        )
    if manifest.get("version") != records.VERSION:
        raise InputError(
            f"{manifest_file}: format version {manifest.get('version')!r}; expected version "
            f"{records.VERSION}, or another --output_dir"
        )
    with _valid_content(manifest_file):
        reject_other_settings(output_dir, "a finished dataset", manifest, requested)
        logging.info(
            "%s is finished; nothing to do (use another folder for a new dataset)", output_dir
        )
        _report(output_dir, manifest, log_odd_input)
    return manifest


def _find_plan(output_dir: str, building: str, requested: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the plan of an unfinished build, or None; without spilled if its files are damaged.

    Raises an `InputError` if the build has other settings or package versions, which could make
    other shards, or if the output folder holds other records.
    """
    plan_file = os.path.join(building, _PLAN)
    if not os.path.exists(plan_file):
        unlisted = [name for name in os.listdir(output_dir) if name.endswith(".tfrecord")]
        if unlisted:
            raise InputError(
                f"--output_dir={output_dir}: holds {unlisted[0]} but no {records.MANIFEST}; "
                "expected an empty folder or a dataset created by this program"
            )
        return None
    plan = files.read_json(plan_file)
    with _valid_content(plan_file):
        description = f"an unfinished dataset (to start again, remove {building})"
        reject_other_settings(output_dir, description, plan, requested)
        # Earlier versions of this program did not write made_with.
        made_with = plan.get("made_with") or {}
        changes = "; ".join(
            f"{name} was {old}, now {new}"
            for name, old, new in version_differences(made_with, requested["made_with"])
        )
        if changes:
            raise InputError(
                f"--output_dir={output_dir}: holds an unfinished dataset started with other "
                f"package versions: {changes}; expected the same versions, because they "
                f"determine the bytes of the dataset; to start again, remove {building}"
            )
        logging.info("%s: resuming an unfinished build", output_dir)
        spilled = plan.get("spilled", {})
        if spilled and not spilled.items() <= spill.spilled_files(building).items():
            logging.warning("%s: temporary files are damaged: reading the text again", building)
            del plan["spilled"]
            files.write_json(plan_file, plan)
    return plan


@contextlib.contextmanager
def _valid_content(path: str) -> Iterator[None]:
    """Reports a value that is missing in a plan or a manifest as an `InputError`."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: invalid content ({error!r}); expected a file written by this program; use "
            "another or an empty --output_dir"
        ) from None


@contextlib.contextmanager
def locked_folder(output_dir: str) -> Iterator[str]:
    """Creates the folder .building, locks it against other builds and yields its path.

    If the block raises an `InputError` before the folder contains a plan, the folder is removed.
    Raises an `InputError` if the folder cannot be created, or another build is running there.
    """
    building = os.path.join(output_dir, _BUILDING)
    is_new = not os.path.exists(output_dir)
    in_use = f"--output_dir={output_dir}: another build is running in this folder"
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror})"
        ) from None
    try:
        # Next to .building, because that folder is removed while the lock is held.
        with locked(building + _LOCK, in_use), _building_folder(building):
            yield building
    except InputError:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(output_dir)
        raise


@contextlib.contextmanager
def _building_folder(building: str) -> Iterator[None]:
    """Creates the folder .building; at the end removes it, unless there is a build to resume."""
    try:
        os.makedirs(building, exist_ok=True)
    except OSError as error:
        raise InputError(f"{building}: cannot be written ({error.strerror})") from None
    try:
        yield
    except InputError:
        # Without a plan, there is nothing to resume.
        if not os.path.exists(os.path.join(building, _PLAN)):
            shutil.rmtree(building, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        os.rmdir(building)  # The folder is empty if the block had nothing to do.


def _remove_leftovers(output_dir: str) -> None:
    """Removes .building and its lock from a finished dataset, unless a build still uses them."""
    building = os.path.join(output_dir, _BUILDING)
    if os.path.exists(building) or os.path.exists(building + _LOCK):
        with contextlib.suppress(InputError), locked_folder(output_dir):
            shutil.rmtree(building, ignore_errors=True)


# --- reading the corpus ---


def _read_corpus(
    building: str,
    plan: dict[str, Any] | None,
    requested: dict[str, Any],
    num_workers: int,
    executor: Executor | None,
    log_odd_input: bool,
) -> dict[str, Any]:
    """Reads the corpus into temporary files; writes and returns the plan.

    An existing `plan` stays, and only its temporary files are created again.
    """
    for name in os.listdir(building):  # left by a build that was killed while reading
        path = os.path.join(building, name)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif plan is None or name.startswith(spill.SPILLED):
            os.remove(path)
    earlier = plan or requested
    settings = Settings(**earlier["settings"])
    num_buckets = earlier.get("num_buckets") or settings.num_shards
    num_buckets = num_buckets or default_num_buckets(requested["inputs"])
    target = spill.Spill(
        settings.reading(), settings.random_seed, num_buckets, building, requested["made_with"]
    )
    paths = [entry["file"] for entry in requested["inputs"]]
    with Progress("reading", sum(entry["bytes"] for entry in requested["inputs"]), "B") as progress:
        entries, spilled = spill.spill_documents(paths, target, num_workers, progress, executor)
    if log_odd_input:
        odd = OddInput()
        for entry in entries:
            odd.merge(entry["odd"])
        odd.log()
    if plan is None:
        _check_corpus(entries, settings.next_sentence)
        num_shards = settings.num_shards or default_num_shards(
            num_buckets,
            sum(entry["documents"] for entry in entries),
            sum(entry["text_bytes"] for entry in entries),
            sum(entry["sentences"] for entry in entries),
            settings.next_sentence,
        )
        settings = dataclasses.replace(settings, num_shards=num_shards)
        kept = ("file", "bytes", "sha256", "documents", "sentences", "odd")
        inputs = [{key: entry[key] for key in kept} for entry in entries]
        plan = requested | {"settings": settings.to_dict(), "inputs": inputs}
    plan |= {"num_buckets": num_buckets, "spilled": spilled}
    files.write_json(os.path.join(building, _PLAN), plan)
    return plan


def _check_corpus(entries: list[dict[str, Any]], next_sentence: str) -> None:
    """Raises an `InputError` if no examples can be created from a corpus.

    For next_sentence=random, at least one document must have two sentences; if there is only one
    document, a warning is logged. For the other values, any text is enough: "order" can split a
    sentence, and "none" makes no pairs.
    """
    where = entries[0]["file"] + (f" and {len(entries) - 1} more" if entries[1:] else "")
    num_documents = sum(entry["documents"] for entry in entries)
    if not num_documents:
        raise InputError(f"--input_file: no text in {where}; expected at least one document")
    if next_sentence != "random":
        return
    if max(entry["longest_document"] for entry in entries) < 2:
        raise InputError(
            f"--input_file: no document of {where} has two sentences, so there is no next sentence "
            "to predict; expected one sentence per line and blank lines between documents"
        )
    if num_documents == 1:
        logging.warning(
            "%s is a single document, so every random next sentence comes from that same document; "
            "separate documents by blank lines",
            where,
        )


def default_num_buckets(inputs: Iterable[Mapping[str, Any]]) -> int:
    """Chooses the number of temporary files per job by the size of the input files.

    It is a power of two, so that the files can be merged or split evenly into the number of shards
    that `default_num_shards` chooses. `inputs` has {"file": path, "bytes": size} for each file.
    """
    text_bytes = sum(spill.text_bytes_of(entry["file"], entry["bytes"]) for entry in inputs)
    num_buckets = -(-text_bytes // _TEXT_BYTES_PER_SHARD)
    return min(1 << max(num_buckets - 1, 0).bit_length(), _MAX_SHARDS)


def default_num_shards(
    num_buckets: int,
    num_documents: int,
    text_bytes: int,
    num_sentences: int,
    next_sentence: str = "random",
) -> int:
    """Chooses the number of shards, a power of two, by the contents of the corpus.

    The number starts at `num_buckets`, a power of two, and is doubled until each shard fits in the
    memory of a worker. For next_sentence=random, it is then halved until each shard has enough
    documents for random pairs, but only as long as each shard still fits.
    """

    def is_too_much(num_shards: int) -> bool:
        return (
            text_bytes > num_shards * _MAX_TEXT_BYTES_PER_SHARD
            or num_sentences > num_shards * _MAX_SENTENCES_PER_SHARD
        )

    num_shards = num_buckets
    while num_shards < _MAX_SHARDS and is_too_much(num_shards):
        num_shards *= 2
    while (
        next_sentence == "random"
        and num_shards > 1
        and num_documents < num_shards * _DOCUMENTS_PER_SHARD
        and not is_too_much(num_shards // 2)
    ):
        num_shards //= 2
    return num_shards


# --- creating the shards ---


def _make_shards(
    plan: dict[str, Any],
    building: str,
    output_dir: str,
    num_workers: int,
    executor: Executor | None,
) -> list[dict[str, Any]]:
    """Creates the shards of a plan that are missing; returns the notes of all its shards."""
    settings = Settings(**plan["settings"])
    num_shards = settings.num_shards
    vocab_file = os.path.join(building, _VOCAB)
    documents = spill.files_of_shards(plan["spilled"], plan["num_buckets"], num_shards)
    # A build that was killed may already have moved shards to the output directory.
    sizes = [_sizes(building), _sizes(output_dir)]
    notes, jobs = [], []
    for index in range(num_shards):
        name = tfrecords.shard_name(index, num_shards)
        note_file = os.path.join(building, name + ".json")
        note = files.read_json(note_file) if os.path.exists(note_file) else None
        if note and any(folder.get(name) == note["bytes"] for folder in sizes):
            notes.append(note)
        else:
            paths = [os.path.join(building, file) for file in documents[index]]
            jobs.append(
                shards.ShardJob(index, paths, building, vocab_file, settings, plan["made_with"])
            )
    with Progress("writing", None, "examples") as progress:
        for note in run_jobs(shards.make_shard, jobs, num_workers, executor):
            notes.append(note)
            progress.add(note["examples"], f"{len(notes)} of {num_shards} shards")
    return sorted(notes, key=lambda note: note["index"])


def _sizes(folder: str) -> dict[str, int]:
    with os.scandir(folder) as found:
        return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}


def _finish(
    plan: dict[str, Any], notes: list[dict[str, Any]], building: str, output_dir: str
) -> dict[str, Any]:
    """Moves a complete dataset to the output directory and writes its manifest."""
    try:
        manifest = _make_manifest(plan, notes)
    except InputError:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(building, _PLAN))  # Nothing here can be resumed.
        raise
    try:
        for name in [_VOCAB, *(note["file"] for note in notes)]:
            if os.path.exists(os.path.join(building, name)):  # Otherwise, it was moved before.
                os.replace(os.path.join(building, name), os.path.join(output_dir, name))
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror or error})"
        ) from None
    sizes = _sizes(output_dir)
    for note in notes:
        if sizes.get(note["file"]) != note["bytes"]:
            raise InputError(
                f"{os.path.join(output_dir, note['file'])}: found "
                f"{sizes.get(note['file'], 'no file')}; expected {note['bytes']} bytes; run the "
                "same command again to create the shard again"
            )
    files.write_json(os.path.join(output_dir, records.MANIFEST), manifest)
    shutil.rmtree(building, ignore_errors=True)
    # ru_maxrss is in kilobytes, but in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    this, child = (
        resource.getrusage(who).ru_maxrss // unit
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    logging.info("peak memory of the largest process: %d MiB", max(this, child))
    return manifest


def _make_manifest(plan: dict[str, Any], notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Creates the manifest from the plan and the notes of all shards, in order of their indices.

    Raises an `InputError` if the dataset has no example.
    """
    counted = (
        "documents",
        "sentences",
        "examples",
        "rows",
        "random_next",
        "masked",
        "real_tokens",
    )
    counts = {name: sum(note[name] for note in notes) for name in counted}
    if not counts["documents"]:
        raise InputError("--input_file: the tokenizer found no words in the corpus; expected text")
    if not counts["examples"]:  # the other values always create examples
        raise InputError(
            "--next_sentence=order: every document is a single token, which cannot be split into "
            "two segments; expected longer documents, or --next_sentence=none"
        )
    num_single = sum(note["documents"] == 1 for note in notes)
    if plan["settings"]["next_sentence"] == "random" and num_single and counts["documents"] > 1:
        logging.warning(
            "%d of %d shards have only one document, so their random next sentences come from that "
            "same document; use a smaller --num_shards",
            num_single,
            len(notes),
        )
    # The notes of earlier versions have no counts of words.
    words, unknown = (sum(note.get(k, 0) for note in notes) for k in ("words", "unknown_words"))
    key = "unknown_words_description"
    described = [note[key] for note in notes if key in note]
    if described and is_many(words, unknown):
        log_unknown_words(words, unknown, described[0])
    kept = ("file", "examples", "rows", "bytes", "sha256")
    return {
        "format": records.FORMAT,
        "version": records.VERSION,
        "made_with": plan["made_with"],
        "settings": plan["settings"],
        "vocab": plan["vocab"],
        "inputs": plan["inputs"],
        "counts": counts,
        "shards": [{key: note[key] for key in kept} for note in notes],
    }


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
