"""What every build of a dataset shares, wherever it runs: what was asked, the folder, the manifest.

In: settings, input files, and in the end a note a shard. Out: the plan, which says what an
unfinished build is about, and the manifest, which makes a dataset of a folder. Both are JSON:

    made_with  the versions that decide the bytes, by package
    settings   all fields of `Settings`, num_shards the real number
    vocab      file, size, sha256
    inputs     a file each: file, bytes, sha256, documents, sentences, odd
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

# Random streams, the tokenizer's Unicode tables and the sentence splitter's rules are theirs.
_PACKAGES = ("keras_bert", "numpy", "sentencex", "tensorflow", "tensorflow-text")


def what_is_asked(
    inputs: list[dict[str, Any]], vocab_file: str, settings: Settings
) -> dict[str, Any]:
    """Describes a build before any text is read.

    Args:
        inputs: file and bytes of each input file.
        vocab_file: the vocabulary.
        settings: the settings.

    Returns:
        settings, vocab and inputs.

    Raises:
        InputError: for a bad vocabulary.
    """
    size = len(load_vocab(vocab_file))
    vocab = {"file": VOCAB, "size": size, "sha256": files.sha256(vocab_file)}
    return {"settings": settings.to_dict(), "vocab": vocab, "inputs": inputs}


def check_finished(output_dir: str, manifest: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuses a folder that holds another dataset than the one that is asked for.

    Args:
        output_dir: where the manifest was found.
        manifest: its content.
        asked: see `what_is_asked`.

    Raises:
        InputError: for another dataset, with the differences, or a manifest of another program.
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
    """Refuses a folder where another dataset has been begun, or this one with other versions.

    Args:
        output_dir: where the plan was found, in the folder .building.
        plan: its content.
        asked: see `what_is_asked`.

    Raises:
        InputError: for another dataset or other versions, with the differences.
    """
    building = os.path.join(output_dir, BUILDING)
    _check_form(os.path.join(building, PLAN), plan)
    what = f"an unfinished dataset (remove {building} to begin anew)"
    refuse_other_settings(output_dir, what, plan, asked)
    had, now = plan.get("made_with"), _made_with()
    if had != now:
        had = had if isinstance(had, dict) else {}  # Earlier versions wrote none.
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
    """Refuses a plan or a manifest that lacks what another one is compared with."""
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
    """Tells whether the shard that a note tells of is there.

    Args:
        note: the note.
        sizes: names and sizes of the files in the places where it may be.
    """
    return any(of.get(note["file"]) == note["bytes"] for of in sizes)


def check_moved(output_dir: str, notes: Iterable[dict[str, Any]], sizes: Mapping[str, int]) -> None:
    """Checks, before a manifest vouches for them, that all shards are in their place.

    Args:
        output_dir: the place.
        notes: the notes of all.
        sizes: names and sizes of the files there.

    Raises:
        InputError: when one is not.
    """
    for note in notes:
        if not has_its_bytes(note, [sizes]):
            raise InputError(
                f"{os.path.join(output_dir, note['file'])}: expected {note['bytes']} bytes, found "
                f"{sizes.get(note['file'], 'no file')}: run the same command again to make it anew"
            )


def refuse_strangers(output_dir: str, names: list[str]) -> None:
    """Refuses a folder with records that no manifest vouches for.

    Args:
        output_dir: the folder.
        names: what is in it.

    Raises:
        InputError: there is such a file.
    """
    strangers = [name for name in names if name.endswith(".tfrecord")]
    if strangers:
        raise InputError(
            f"--output_dir={output_dir} holds {strangers[0]} but no {record_files.MANIFEST}: "
            "expected an empty folder or a dataset of this program"
        )


def make_plan(
    asked: dict[str, Any], inputs: list[dict[str, Any]], num_buckets: int
) -> dict[str, Any]:
    """Settles what is made of a corpus, once it has been read.

    Args:
        asked: see `what_is_asked`.
        inputs: what was found in each input file, with longest_document and text_bytes.
        num_buckets: as many shards as `partition.default_num_buckets` wants; used if the number of
            shards was left open.

    Returns:
        The plan.

    Raises:
        InputError: when nothing can be made of the corpus.
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
    """Puts together what a whole dataset is.

    Args:
        plan: what was to be made.
        notes: what was made: a note a shard (`shards.write_shard_of`).

    Returns:
        The manifest.

    Raises:
        InputError: when there is no example at all.
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
    if not counts["examples"]:  # random and none make some of any word
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
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return "not installed"


@contextlib.contextmanager
def locked_folder(output_dir: str) -> Iterator[str]:
    """Makes the folder .building and keeps other builds out of it.

    Args:
        output_dir: where the dataset goes.

    Yields:
        The path of .building. An `InputError` before there is a plan leaves no trace of it.

    Raises:
        InputError: when it cannot be made, or another build is at work there.
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
        # Beside .building, which goes with all that is in it while the lock is held.
        with locked(building + _LOCK, at_work), _building_folder(building):
            yield building
    except InputError:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(output_dir)
        raise


@contextlib.contextmanager
def _building_folder(building: str) -> Iterator[None]:
    """Makes the folder .building, and removes it if the block leaves nothing to go on with."""
    try:
        os.makedirs(building, exist_ok=True)
    except OSError as error:
        raise InputError(f"{building}: cannot be written ({error.strerror})") from None
    try:
        yield
    except InputError:
        # Without a plan there is nothing to go on with: leave no trace.
        if not os.path.exists(os.path.join(building, PLAN)):
            shutil.rmtree(building, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        os.rmdir(building)  # It is there, and empty, if there was nothing to do.


def remove_leftovers(output_dir: str) -> None:
    """Removes .building and its lock beside a manifest: a kill during the last clean-up left them.

    A build that is still at its clean-up is left alone, and so is a folder that cannot be written.

    Args:
        output_dir: where the finished dataset is.
    """
    building = os.path.join(output_dir, BUILDING)
    if os.path.exists(building) or os.path.exists(building + _LOCK):
        with contextlib.suppress(InputError), locked_folder(output_dir):
            shutil.rmtree(building, ignore_errors=True)
