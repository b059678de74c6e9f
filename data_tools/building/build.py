"""Implements the steps that all builds share: plan, manifest and checks of the output folder.

The plan describes an unfinished build, and the manifest a finished one. Both are JSON with the
following keys. The manifest also has format, version, counts and shards, which are collected from
the notes of the shards (`shards.write_shard_of`).

    made_with  versions of the packages that affect the output
    settings   all fields of `Settings`, with the actual num_shards
    vocab      file, size, sha256
    inputs     for each file: file, bytes, sha256, documents, sentences, odd
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from data_tools.building import partition, versions
from data_tools.settings import Settings, reject_other_settings
from keras_bert.common import files
from keras_bert.common.errors import InputError
from keras_bert.common.lock import locked
from keras_bert.data import record_files
from keras_bert.text.unknown_words import is_many, log_unknown_words
from keras_bert.text.user_tokens import ids_of
from keras_bert.text.vocabulary import load_vocab

BUILDING, PLAN, VOCAB = ".building", "plan.json", "vocab.txt"
_LOCK = ".lock"  # .building.lock, next to .building


def requested_dataset(
    inputs: list[dict[str, Any]], vocab_file: str, settings: Settings
) -> dict[str, Any]:
    """Returns {"settings", "vocab", "inputs"} of the requested dataset, before any text is read.

    `inputs` has {"file": path, "bytes": size} for each input file.
    """
    tokens = load_vocab(vocab_file)
    user_tokens = settings.tokenizer().user_tokens
    ids_of(user_tokens, tokens, f"--vocab_file={vocab_file}")
    vocab = {"file": VOCAB, "size": len(tokens), "sha256": files.sha256(vocab_file)}
    return {"settings": settings.to_dict(), "vocab": vocab, "inputs": inputs}


def check_finished(output_dir: str, manifest: dict[str, Any], requested: dict[str, Any]) -> None:
    """Raises an `InputError` if a finished dataset differs from the requested one.

    The message lists the differences. A manifest of another program or format version also raises
    an `InputError`.
    """
    manifest_file = os.path.join(output_dir, record_files.MANIFEST)
    if manifest.get("format") != record_files.FORMAT:
        raise InputError(
            f"{manifest_file}: not a manifest of create-pretraining-data; expected another "
            "--output_dir"
        )
    if manifest.get("version") != record_files.VERSION:
        raise InputError(
            f"{manifest_file}: format version {manifest.get('version')!r}; expected version "
            f"{record_files.VERSION}, or another --output_dir"
        )
    _check_form(manifest_file, manifest)
    try:
        _ = manifest["counts"]["examples"] + manifest["counts"]["rows"], len(manifest["shards"])
        _ = manifest["counts"]["documents"], [entry["odd"].items() for entry in manifest["inputs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _invalid_file_error(manifest_file, error) from None
    reject_other_settings(output_dir, "a finished dataset", manifest, requested)
    logging.info("%s is finished; nothing to do (use another folder for a new dataset)", output_dir)


def check_resumable(output_dir: str, plan: dict[str, Any], requested: dict[str, Any]) -> None:
    """Raises an `InputError` if the build of a plan cannot be resumed for the requested dataset.

    The message lists the differences in the dataset or in the package versions.
    """
    building = os.path.join(output_dir, BUILDING)
    _check_form(os.path.join(building, PLAN), plan)
    description = f"an unfinished dataset (to start again, remove {building})"
    reject_other_settings(output_dir, description, plan, requested)
    input_format = requested["settings"]["input_format"]
    made_with = plan.get("made_with")
    # Earlier versions of this program did not write made_with.
    made_with = made_with if isinstance(made_with, dict) else {}
    if found := versions.differences(made_with, versions.build_versions(input_format)):
        changes = "; ".join(f"{name} was {old}, now {new}" for name, old, new in found)
        raise InputError(
            f"--output_dir={output_dir}: holds an unfinished dataset started with other package "
            f"versions: {changes}; expected the same versions, because they "
            f"determine the bytes of the dataset; to start again, remove {building}"
        )
    logging.info("%s: resuming an unfinished build", output_dir)


def _check_form(path: str, content: dict[str, Any]) -> None:
    """Raises an `InputError` if a plan or a manifest lacks a value that is compared later."""
    try:
        settings = content["settings"]
        _ = settings.items(), settings["num_shards"] + 0, content["vocab"]["sha256"]
        _ = [(entry["file"], entry["bytes"] + 0, entry["sha256"]) for entry in content["inputs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _invalid_file_error(path, error) from None


def _invalid_file_error(path: str, error: Exception) -> InputError:
    return InputError(
        f"{path}: invalid content ({error!r}); expected a file written by this program; use "
        "another or an empty --output_dir"
    )


def has_recorded_size(note: dict[str, Any], sizes: Iterable[Mapping[str, int]]) -> bool:
    """Returns whether one of several folders has a shard with the size that its note records.

    `sizes` has {file name: size in bytes} for each folder.
    """
    return any(folder.get(note["file"]) == note["bytes"] for folder in sizes)


def check_moved(output_dir: str, notes: Iterable[dict[str, Any]], sizes: Mapping[str, int]) -> None:
    """Raises an `InputError` if a shard in the output folder is missing or has a wrong size.

    `notes` record the right sizes. `sizes` is {file name: size in bytes} of the output folder.
    """
    for note in notes:
        if not has_recorded_size(note, [sizes]):
            raise InputError(
                f"{os.path.join(output_dir, note['file'])}: found "
                f"{sizes.get(note['file'], 'no file')}; expected {note['bytes']} bytes; run the "
                "same command again to create the shard again"
            )


def reject_unlisted_files(output_dir: str, names: list[str]) -> None:
    """Raises an `InputError` if an output folder without a manifest holds TFRecord files.

    `names` are the names of the files in the folder.
    """
    unlisted = [name for name in names if name.endswith(".tfrecord")]
    if unlisted:
        raise InputError(
            f"--output_dir={output_dir}: holds {unlisted[0]} but no {record_files.MANIFEST}; "
            "expected an empty folder or a dataset created by this program"
        )


def make_plan(
    requested: dict[str, Any], inputs: list[dict[str, Any]], num_buckets: int
) -> dict[str, Any]:
    """Creates the plan after the corpus has been read.

    `inputs` are the entries of the input files (`InputFile.entry`). longest_document and text_bytes
    are removed from them, because the plan does not need them. If the setting num_shards is 0,
    the number of shards is derived from `num_buckets` (`partition.default_num_buckets`).

    Raises:
        InputError: if no example can be created from the corpus.
    """
    settings = Settings(**requested["settings"])
    num_documents = sum(entry["documents"] for entry in inputs)
    num_sentences = sum(entry["sentences"] for entry in inputs)
    text_bytes = sum(entry.pop("text_bytes") for entry in inputs)
    longest = max(entry.pop("longest_document") for entry in inputs)
    partition.check_corpus(
        [entry["file"] for entry in inputs], num_documents, longest, settings.next_sentence
    )
    num_shards = settings.num_shards or partition.default_num_shards(
        num_buckets, num_documents, text_bytes, num_sentences, settings.next_sentence
    )
    settings = dataclasses.replace(settings, num_shards=num_shards)
    return requested | {
        "made_with": versions.build_versions(settings.input_format),
        "settings": settings.to_dict(),
        "inputs": inputs,
    }


def make_manifest(plan: dict[str, Any], notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Creates the manifest from the plan and the notes of all shards (`shards.write_shard_of`).

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
    _warn_of_unknown_words(notes)
    kept = ("file", "examples", "rows", "bytes", "sha256")
    return {
        "format": record_files.FORMAT,
        "version": record_files.VERSION,
        "made_with": plan["made_with"],
        "settings": plan["settings"],
        "vocab": plan["vocab"],
        "inputs": plan["inputs"],
        "counts": counts,
        "shards": [
            {key: note[key] for key in kept} for note in sorted(notes, key=lambda n: n["index"])
        ],
    }


def _warn_of_unknown_words(notes: list[dict[str, Any]]) -> None:
    key = "unknown_words_description"
    described = [note for note in notes if key in note]
    if not described:
        return
    # The notes of earlier versions have no counts.
    words, unknown = (sum(note.get(k, 0) for note in notes) for k in ("words", "unknown_words"))
    if is_many(words, unknown):
        log_unknown_words(words, unknown, described[0][key])


@contextlib.contextmanager
def locked_folder(output_dir: str) -> Iterator[str]:
    """Creates the folder .building, locks it against other builds and yields its path.

    If the block raises an `InputError` before the folder contains a plan, the folder is removed.
    Raises an `InputError` if the folder cannot be created, or another build is running there.
    """
    building = os.path.join(output_dir, BUILDING)
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
        if not os.path.exists(os.path.join(building, PLAN)):
            shutil.rmtree(building, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        os.rmdir(building)  # The folder is empty if the block had nothing to do.


def remove_leftovers(output_dir: str) -> None:
    """Removes .building and its lock from a finished dataset, unless a build still uses them."""
    building = os.path.join(output_dir, BUILDING)
    if os.path.exists(building) or os.path.exists(building + _LOCK):
        with contextlib.suppress(InputError), locked_folder(output_dir):
            shutil.rmtree(building, ignore_errors=True)
