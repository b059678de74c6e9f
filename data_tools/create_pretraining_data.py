r"""Creates a dataset of masked-LM and next-sentence examples from raw text.

    keras-bert create-pretraining-data --input_file='corpus/*.txt' --vocab_file=vocab.txt \
        --output_dir=dataset

    keras-bert create-pretraining-data --input_file=books --input_format=prose \
        --vocab_file=vocab.txt --output_dir=dataset --max_seq_length=32 \
        --max_predictions_per_seq=5 --dynamic

The output directory holds records-NNNNN-of-NNNNN.tfrecord, a copy of the vocabulary (vocab.txt) and
manifest.json, which lists the settings, the inputs, the counts and a checksum for each shard. Until
the dataset is complete, all files are in the subdirectory .building; manifest.json is written last.
An interrupted run is resumed with the same command, which creates only the missing shards.

--dask_scheduler=tcp://HOST:8786 uses the workers of a Dask cluster (extra [dask]), with input and
output in folders that all of them share.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from absl import logging
from absl.flags import FlagValues

from data_tools import shards, spill, tfrecords
from data_tools.corpus import FORMAT_PACKAGES, find_input_files
from data_tools.jobs import Progress, dask_executor, run_jobs, version_differences, versions_of
from data_tools.lines import OddInput
from data_tools.settings import CorpusOptions, Settings, settings_of
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.options import advanced, option
from keras_bert.pretraining import record_files
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.text.settings import ids_of
from keras_bert.text.unknown_words import is_many, log_unknown_words
from keras_bert.text.vocabulary import load_vocab

# The build runs in the folder .building:
#
#     input files -> temporary files by hash (`spill`) -> plan.json
#     temporary files -> each shard (`shards`) -> its note, a JSON file with its counts
#     notes -> manifest.json, in the output folder
#
# plan.json is written when the first step is complete, and the note of a shard when the shard is.
# The plan describes an unfinished build, and the manifest a finished one. Both have these keys, of
# which a build first makes a request, without the counts of the inputs:
#
#     made_with  versions of the packages that affect the output
#     settings   all fields of `Settings`, with the actual num_shards
#     vocab      file, size, sha256
#     inputs     for each file: file, bytes, sha256, documents, sentences, odd
#
# The plan also has num_buckets, the number of temporary files per job, and spilled, the names of
# the temporary files. The manifest also has format, version, counts and shards.
_BUILDING, _PLAN, _VOCAB = ".building", "plan.json", "vocab.txt"
_LOCK = ".lock"  # .building.lock, next to .building
_REQUEST_KEYS = ("made_with", "settings", "vocab", "inputs")
_COUNTS = (
    "documents",
    "sentences",
    "examples",
    "rows",
    "random_next",
    "masked",
    "real_tokens",
)
# These packages determine the random numbers, the tokenizer's Unicode tables and the rules of the
# sentence splitter.
_PACKAGES = ("numpy", "sentencex", "tensorflow", "tensorflow-text")

_TEXT_BYTES_PER_SHARD = 8 << 20
# Segment B of a random pair should be drawn from many other documents.
_DOCUMENTS_PER_SHARD = 32
# Limits for the memory of a worker, with a margin because some shards are larger by chance.
_MAX_TEXT_BYTES_PER_SHARD = 32 << 20
_MAX_SENTENCES_PER_SHARD = 500_000
_MAX_SHARDS = 1 << 16


def create_pretraining_data(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int = 0,
    executor: Executor | None = None,
    log_odd_input: bool = True,
) -> dict[str, Any]:
    """Creates a dataset, or resumes an unfinished one; returns its manifest.

    The bytes of the dataset depend only on the text, the vocabulary and `settings`. Therefore, a
    dataset that was started with other workers can be finished with these. A dataset with other
    settings in `output_dir` is an error, and stays unchanged.

    `input_file` is a comma-separated list of files, globs and folders. The work runs in
    `num_workers` local processes (0: one for each processor), or on an `executor`, for example that
    of a Dask client, whose workers must share a file system with this machine.
    """
    files.check_not_input_folder(output_dir, map(str.strip, input_file.split(",")))
    if num_workers < 0:
        raise InputError(f"--num_workers={num_workers}: expected at least 0")
    predictions = round(settings.max_seq_length * settings.masked_lm_prob)
    if settings.pack and settings.max_predictions_per_seq < predictions:
        logging.warning(
            "--max_predictions_per_seq=%d is too small to fill the rows of --pack, because it "
            "limits the predictions of all examples in a row; "
            "use --max_predictions_per_seq=%d or more",
            settings.max_predictions_per_seq,
            predictions,
        )
    num_workers = num_workers or len(os.sched_getaffinity(0))
    input_files = find_input_files(input_file, settings.input_format)
    if executor is not None:  # The workers may run in other folders.
        input_files = list(map(os.path.abspath, input_files))
        output_dir = os.path.abspath(output_dir)
    tokens = load_vocab(vocab_file)
    ids_of(settings.tokenizer().user_tokens, tokens, f"--vocab_file={vocab_file}")
    states = {path: _state(path) for path in input_files}
    with Progress("checking", sum(size for size, _ in states.values()), "B") as progress:
        checksums = {path: files.sha256(path, progress.add) for path in input_files}
    request = {
        "made_with": versions_of(_PACKAGES + FORMAT_PACKAGES.get(settings.input_format, ())),
        "settings": settings.to_dict(),
        "vocab": {"file": _VOCAB, "size": len(tokens), "sha256": files.sha256(vocab_file)},
        "inputs": [
            {"file": path, "bytes": states[path][0], "sha256": checksums[path]}
            for path in input_files
        ],
    }
    run = functools.partial(
        run_jobs, made_with=request["made_with"], num_workers=num_workers, executor=executor
    )
    if manifest := _find_finished(output_dir, request):
        # Left by a build that was killed at its end.
        shutil.rmtree(os.path.join(output_dir, _BUILDING), ignore_errors=True)
    else:
        with locked_folder(output_dir) as building:
            # Another build may have finished it.
            manifest = _find_finished(output_dir, request)
            if not manifest:
                plan = _find_plan(output_dir, building, request) or _read_corpus(
                    building, request, states, run, num_workers, log_odd_input
                )
                with open(vocab_file, "rb") as file:
                    files.write_bytes(os.path.join(building, _VOCAB), file.read())
                notes = _make_shards(plan, building, run)
                manifest = _finish(plan, notes, building, output_dir)
    _log_size(output_dir, manifest)
    return manifest


def _state(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


# --- earlier builds ---


def _find_finished(output_dir: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if the requested dataset is finished, else None."""
    manifest = record_files.read_manifest(os.path.join(output_dir, record_files.MANIFEST))
    if manifest:
        _reject_other_settings(output_dir, "a finished dataset", manifest, request)
        logging.info(
            "%s is finished; nothing to do (use another folder for a new dataset)", output_dir
        )
    return manifest


def _find_plan(output_dir: str, building: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the plan of an unfinished build, or None."""
    path = os.path.join(building, _PLAN)
    if not os.path.exists(path):
        unlisted = [name for name in os.listdir(output_dir) if name.endswith(".tfrecord")]
        if unlisted:
            raise InputError(
                f"--output_dir={output_dir}: holds {unlisted[0]} but no {record_files.MANIFEST}; "
                "expected an empty folder or a dataset created by this program"
            )
        return None
    plan = files.read_json(path)
    remedy = f"to start again, remove {building}"
    _reject_other_settings(output_dir, f"an unfinished dataset ({remedy})", plan, request)
    if differences := version_differences(plan["made_with"], request["made_with"]):
        raise InputError(
            f"--output_dir={output_dir}: holds an unfinished dataset started with other package "
            f"versions: {differences}; expected the same versions, because they determine the "
            f"bytes of the dataset; {remedy}"
        )
    logging.info("%s: resuming an unfinished build", output_dir)
    return plan


def _reject_other_settings(
    output_dir: str, description: str, existing: Mapping[str, Any], request: Mapping[str, Any]
) -> None:
    """Raises an `InputError` with the differences if a folder holds a dataset with other settings.

    Of the input files, only the names and the contents are compared, because the corpus may have
    been moved to another folder.
    """
    old, new = existing["settings"], dict(request["settings"])
    if new["num_shards"] == 0:  # With 0, any existing number matches.
        new["num_shards"] = old.get("num_shards")
    differences = [
        f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if existing["vocab"].get("sha256") != request["vocab"]["sha256"]:
        differences.append("the vocabulary differs")
    old, new = ([_named(entry) for entry in each["inputs"]] for each in (existing, request))
    if len(old) != len(new):
        differences.append(f"the number of input files was {len(old)}, now {len(new)}")
    elif changed := [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]:
        (name, size, _), (new_name, new_size, _) = changed[0]
        if (name, size) == (new_name, new_size):
            differences.append(f"the content of the input file {name} has changed")
        else:
            before, now = f"{name} ({size} bytes)", f"{new_name} ({new_size} bytes)"
            differences.append(f"input file was {before}, now {now}")
    if differences:
        raise InputError(
            f"--output_dir={output_dir}: holds {description} with other settings or input: "
            f"{'; '.join(differences)}; expected the same flags, or another --output_dir"
        )


def _named(entry: Mapping[str, Any]) -> tuple[str, Any, str]:
    path, sha256 = (str(entry.get(key, "")) for key in ("file", "sha256"))
    return os.path.basename(path), entry.get("bytes"), sha256


@contextlib.contextmanager
def locked_folder(output_dir: str) -> Iterator[str]:
    """Creates the folder .building, locks it against other builds and yields its path.

    The folder is removed at the end if it contains no plan, and with it a new output folder.
    """
    building = os.path.join(output_dir, _BUILDING)
    is_new = not os.path.exists(output_dir)
    in_use = f"--output_dir={output_dir}: another build is running in this folder"
    try:
        _make_folder(output_dir, f"--output_dir={output_dir}")
        # Next to .building, because that folder is removed while the lock is held.
        with files.locked(building + _LOCK, in_use):
            try:
                _make_folder(building, building)
                yield building
            finally:
                if not os.path.exists(os.path.join(building, _PLAN)):
                    shutil.rmtree(building, ignore_errors=True)  # There is nothing to resume.
    except InputError:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(output_dir)
        raise


def _make_folder(path: str, name: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"{name}: cannot be written ({error.strerror})") from None


# --- reading the corpus ---


def _read_corpus(
    building: str,
    request: Mapping[str, Any],
    states: Mapping[str, tuple[int, int]],
    run: Callable[..., Iterator[Any]],
    num_workers: int,
    log_odd_input: bool,
) -> dict[str, Any]:
    """Reads the corpus into temporary files; writes and returns the plan.

    `states` are those of the input files when their checksums were computed.
    """
    for folder in Path(building).glob(spill.SPILLED + "*"):
        shutil.rmtree(folder, ignore_errors=True)  # left by a build that was killed while reading
    settings = Settings(**request["settings"])
    paths = list(states)
    num_buckets = settings.num_shards or default_num_buckets(request["inputs"])
    groups = spill.share_out(paths, num_workers, settings)
    counts_of, spilled = {}, []
    num_bytes = sum(spill.text_bytes_of(path, size) for path, (size, _) in states.items())

    def measure() -> int:
        return sum(path.stat().st_size for path in Path(building).glob(spill.SPILLED + "*/*"))

    with Progress("reading", num_bytes, "B", measure):
        jobs = [(sources, settings, num_buckets, building) for sources in groups]
        for counts, names in run(spill.spill, jobs):
            counts_of |= counts
            spilled += names
    for path, state in states.items():
        if _state(path) != state:
            raise InputError(
                f"{path}: the content changed while it was read; run the same command again"
            )
    by_file = spill.counts_by_file(counts_of)
    counts = {path: by_file[path] for path in paths}
    if log_odd_input:
        odd = OddInput()
        for entry in counts.values():
            odd.merge(entry["odd"])
        odd.log()
    total = {
        key: sum(entry[key] for entry in counts.values())
        for key in ("documents", "text_bytes", "sentences")
    }
    longest = max(entry["longest_document"] for entry in counts.values())
    _check_corpus(paths, total["documents"], longest, settings.next_sentence)
    num_shards = settings.num_shards or default_num_shards(
        num_buckets, *total.values(), settings.next_sentence
    )
    inputs = [
        entry | {key: counts[entry["file"]][key] for key in ("documents", "sentences", "odd")}
        for entry in request["inputs"]
    ]
    plan = {
        **request,
        "settings": replace(settings, num_shards=num_shards).to_dict(),
        "inputs": inputs,
        "num_buckets": num_buckets,
        "spilled": sorted(spilled),
    }
    files.write_json(os.path.join(building, _PLAN), plan)
    return plan


def _check_corpus(
    paths: Sequence[str], num_documents: int, longest_document: int, next_sentence: str
) -> None:
    """Raises an `InputError` if no examples can be created from a corpus.

    For next_sentence=random, at least one document must have two sentences; if there is only one
    document, a warning is logged. For the other values, any text is enough: "order" can split a
    sentence, and "none" makes no pairs.
    """
    where = paths[0] + (f" and {len(paths) - 1} more" if paths[1:] else "")
    if not num_documents:
        raise InputError(f"--input_file: no text in {where}; expected at least one document")
    if next_sentence != "random":
        return
    if longest_document < 2:
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
    plan: Mapping[str, Any], building: str, run: Callable[..., Iterator[Any]]
) -> list[dict[str, Any]]:
    """Creates the shards of a plan that are missing; returns the notes of all its shards."""
    settings = Settings(**plan["settings"])
    num_shards = settings.num_shards
    vocab_file = os.path.join(building, _VOCAB)
    documents = spill.files_of_shards(plan["spilled"], plan["num_buckets"], num_shards)
    notes, jobs = [], []
    for index in range(num_shards):
        note_file = os.path.join(building, tfrecords.shard_name(index, num_shards) + ".json")
        if os.path.exists(note_file):  # written after the shard
            notes.append(files.read_json(note_file))
        else:
            paths = [os.path.join(building, file) for file in documents[index]]
            jobs.append((index, paths, building, vocab_file, settings))
    with Progress("writing", None, "examples") as progress:
        for note in run(shards.make_shard, jobs):
            notes.append(note)
            progress.add(note["examples"], f"{len(notes)} of {num_shards} shards")
    return sorted(notes, key=lambda note: note["index"])


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
    files.write_json(os.path.join(output_dir, record_files.MANIFEST), manifest)
    shutil.rmtree(building, ignore_errors=True)
    return manifest


def _make_manifest(plan: dict[str, Any], notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Creates the manifest from the plan and the notes of all shards, in order of their indices."""
    counts = {name: sum(note[name] for note in notes) for name in _COUNTS}
    if not counts["examples"]:
        raise InputError(
            "--input_file: the tokenizer found no words in the corpus, or, for --next_sentence="
            "order, only documents of a single token; expected text"
        )
    words, unknown = (sum(note[key] for note in notes) for key in ("words", "unknown_words"))
    key = "unknown_words_description"
    described = [note[key] for note in notes if key in note]
    if described and is_many(words, unknown):
        log_unknown_words(words, unknown, described[0])
    keys = ("file", "examples", "rows", "bytes", "sha256")
    return {
        "format": record_files.FORMAT,
        "version": record_files.VERSION,
        **{key: plan[key] for key in _REQUEST_KEYS},
        "counts": counts,
        "shards": [{key: note[key] for key in keys} for note in notes],
    }


def _log_size(output_dir: str, manifest: dict[str, Any]) -> None:
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


# --- program ---


@dataclass(frozen=True)
class BuildOptions(CorpusOptions):
    """The options of the program that are not settings of the dataset."""

    output_dir: str = option("", "Output folder of the dataset.", required=True)
    num_workers: int = advanced(0, "Number of local processes; 0 uses one per processor.", min=0)
    dask_scheduler: str = advanced(
        "",
        "Address of the scheduler of a Dask cluster, such as tcp://HOST:8786, whose workers run "
        "the work instead of local processes.",
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Creates the dataset that the flags describe."""
    reject_arguments(arguments)
    settings = settings_of(Settings, flags)
    paths = flags.input_file, flags.output_dir, flags.vocab_file
    if not flags.dask_scheduler:
        create_pretraining_data(*paths, settings, flags.num_workers)
        return
    if flags.num_workers:
        raise InputError(
            f"--num_workers={flags.num_workers} with --dask_scheduler: expected 0, because the "
            "cluster determines the number of workers"
        )
    with dask_executor(flags.dask_scheduler) as (executor, num_threads):
        create_pretraining_data(*paths, settings, num_threads, executor)


PROGRAM = Program(
    "create-pretraining-data",
    __doc__,
    (BuildOptions, Settings),
    main,
    resumable=True,
)
