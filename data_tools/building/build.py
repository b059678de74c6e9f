"""Steps shared by all builds of a dataset: plan, manifest and checks of the output folder.

The plan describes an unfinished build. The manifest marks the dataset as complete. Both are JSON
with these keys, and the manifest also has format, version, counts and shards:

    made_with  versions of the packages that affect the output
    settings   all fields of `Settings`, with the actual num_shards
    vocab      file, size, sha256
    inputs     for each file: file, bytes, sha256, documents, sentences, odd
"""

import contextlib
import dataclasses
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from absl import logging

from data_tools.building import partition
from data_tools.settings import Settings, refuse_other_settings
from keras_bert.common import files
from keras_bert.common.errors import InputError
from keras_bert.common.lock import locked
from keras_bert.data import record_files
from keras_bert.text.vocabulary import load_vocab

BUILDING, PLAN, VOCAB = ".building", "plan.json", "vocab.txt"
_LOCK = ".lock"  # .building.lock, beside .building

# They determine random streams, the tokenizer's Unicode tables and the sentence splitter's rules.
_PACKAGES = ("keras_bert", "numpy", "sentencex", "tensorflow", "tensorflow-text")


def what_is_asked(
    inputs: list[dict[str, Any]], vocab_file: str, settings: Settings
) -> dict[str, Any]:
    """Describes the requested dataset before any text is read: settings, vocab and inputs.

    Raises:
        InputError: if the vocabulary is invalid.
    """
    size = len(load_vocab(vocab_file))
    vocab = {"file": VOCAB, "size": size, "sha256": files.sha256(vocab_file)}
    return {"settings": settings.to_dict(), "vocab": vocab, "inputs": inputs}


def check_finished(output_dir: str, manifest: dict[str, Any], asked: dict[str, Any]) -> None:
    """Checks that the dataset of a manifest is the requested one.

    Raises:
        InputError: if the dataset differs (the message lists the differences), or the manifest was
            written by another program or version.
    """
    manifest_file = os.path.join(output_dir, record_files.MANIFEST)
    if manifest.get("format") != record_files.FORMAT:
        raise InputError(
            f"{manifest_file} is no manifest of this program: expected another --output_dir"
        )
    if manifest.get("version") != record_files.VERSION:
        raise InputError(
            f"{manifest_file} has version {manifest.get('version')!r}, this program makes version "
            f"{record_files.VERSION}: expected another --output_dir"
        )
    _check_form(manifest_file, manifest)
    try:
        _ = manifest["counts"]["examples"] + manifest["counts"]["rows"], len(manifest["shards"])
        _ = manifest["counts"]["documents"], [entry["odd"].items() for entry in manifest["inputs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_whole(manifest_file, error) from None
    refuse_other_settings(output_dir, "a finished dataset", manifest, asked)
    logging.info("%s is finished: nothing to do", output_dir)


def check_begun(output_dir: str, plan: dict[str, Any], asked: dict[str, Any]) -> None:
    """Checks that the build of a plan can be resumed.

    Raises:
        InputError: if the dataset or the package versions differ; the message lists them.
    """
    building = os.path.join(output_dir, BUILDING)
    _check_form(os.path.join(building, PLAN), plan)
    what = f"an unfinished dataset (remove {building} to begin anew)"
    refuse_other_settings(output_dir, what, plan, asked)
    had, now = plan.get("made_with"), _made_with()
    if had != now:
        had = had if isinstance(had, dict) else {}  # Earlier versions did not write it.
        differences = [
            f"{name} was {had.get(name, 'unknown')}, now {now.get(name, 'unknown')}"
            for name in sorted(had.keys() | now.keys())
            if had.get(name) != now.get(name)
        ]
        raise InputError(
            f"--output_dir={output_dir} holds an unfinished dataset begun with other versions, "
            f"which decide its bytes: {'; '.join(differences)}. Go on with those, or remove "
            f"{building} to begin anew"
        )
    logging.info("%s: going on with an unfinished build", output_dir)


def _check_form(path: str, made: dict[str, Any]) -> None:
    """Raises an `InputError` if a plan or a manifest lacks a value that is compared."""
    try:
        _ = made["settings"].items(), made["settings"]["num_shards"] + 0, made["vocab"]["sha256"]
        _ = [(entry["file"], entry["bytes"] + 0, entry["sha256"]) for entry in made["inputs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_whole(path, error) from None


def _not_whole(path: str, error: Exception) -> InputError:
    return InputError(
        f"{path} is not as this program writes it ({error!r}): expected another --output_dir, or "
        "an empty one"
    )


def has_its_bytes(note: dict[str, Any], sizes: Iterable[Mapping[str, int]]) -> bool:
    """Returns whether the shard of a note exists with its size in one of several folders."""
    return any(of.get(note["file"]) == note["bytes"] for of in sizes)


def check_moved(output_dir: str, notes: Iterable[dict[str, Any]], sizes: Mapping[str, int]) -> None:
    """Checks, before the manifest is written, that all shards are in the output folder.

    Raises:
        InputError: if a shard is missing or has another size.
    """
    for note in notes:
        if not has_its_bytes(note, [sizes]):
            raise InputError(
                f"{os.path.join(output_dir, note['file'])}: expected {note['bytes']} bytes, found "
                f"{sizes.get(note['file'], 'no file')}: run the same command again to make it anew"
            )


def refuse_strangers(output_dir: str, names: list[str]) -> None:
    """Raises an `InputError` if a folder without a manifest holds TFRecord files."""
    strangers = [name for name in names if name.endswith(".tfrecord")]
    if strangers:
        raise InputError(
            f"--output_dir={output_dir} holds {strangers[0]} but no {record_files.MANIFEST}: "
            "expected an empty folder or a dataset of this program"
        )


def make_plan(
    asked: dict[str, Any], inputs: list[dict[str, Any]], num_buckets: int
) -> dict[str, Any]:
    """Creates the plan after the corpus has been read.

    Args:
        asked: the requested dataset, from `what_is_asked`.
        inputs: the entries of the input files. Removes longest_document and text_bytes from them.
        num_buckets: the choice of `partition.default_num_buckets`, from which the number of shards
            is derived if it is 0 in the settings.

    Raises:
        InputError: if no example can be created from the corpus.
    """
    settings = Settings(**asked["settings"])
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
    return asked | {
        "made_with": _made_with(),
        "settings": settings.to_dict(),
        "inputs": inputs,
    }


def make_manifest(plan: dict[str, Any], notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Creates the manifest from the plan and the notes of all shards (`shards.write_shard_of`).

    Raises:
        InputError: if the dataset has no example.
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
        raise InputError("--input_file: the tokenizer found no word in the whole corpus")
    if not counts["examples"]:  # random and none create examples from any text
        raise InputError(
            "--next_sentence=order: no example can be made, as every document is a single word "
            "piece, which cannot be cut in two: expected longer documents, or --next_sentence=none"
        )
    lonely = sum(note["documents"] == 1 for note in notes)
    if plan["settings"]["next_sentence"] == "random" and lonely and counts["documents"] > 1:
        logging.warning(
            "%d of %d shards have one document, so that their random next sentences come from "
            "that same document: fewer --num_shards would do better",
            lonely,
            len(notes),
        )
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


def _made_with() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "not installed"


@contextlib.contextmanager
def locked_folder(output_dir: str) -> Iterator[str]:
    """Creates the folder .building, locks it against other builds and yields its path.

    If an `InputError` is raised before there is a plan, the folder is removed again.

    Raises:
        InputError: if the folder cannot be created, or another build is running there.
    """
    building = os.path.join(output_dir, BUILDING)
    is_new = not os.path.exists(output_dir)
    at_work = f"--output_dir={output_dir}: another build is at work there"
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror})"
        ) from None
    try:
        # Next to .building, because that folder is removed while the lock is held.
        with locked(building + _LOCK, at_work), _building_folder(building):
            yield building
    except InputError:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(output_dir)
        raise


@contextlib.contextmanager
def _building_folder(building: str) -> Iterator[None]:
    """Creates the folder .building, and removes it if there is nothing to resume."""
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
        os.rmdir(building)  # The folder is empty if there was nothing to do.


def remove_leftovers(output_dir: str) -> None:
    """Removes .building and its lock next to a manifest, left by a build killed during clean-up.

    A build that is still cleaning up is not disturbed, and a read-only folder is ignored.
    """
    building = os.path.join(output_dir, BUILDING)
    if os.path.exists(building) or os.path.exists(building + _LOCK):
        with contextlib.suppress(InputError), locked_folder(output_dir):
            shutil.rmtree(building, ignore_errors=True)
