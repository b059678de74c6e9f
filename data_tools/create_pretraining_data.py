r"""Raw text in, a dataset of masked-LM and next-sentence examples out.

    python -m data_tools.create_pretraining_data --input_file='corpus/*.txt' \
        --vocab_file=vocab.txt --output_dir=dataset --max_seq_length=128

The output directory holds records-NNNNN-of-NNNNN.tfrecord, a copy of the vocabulary (vocab.txt) and
manifest.json: the settings, the inputs, the counts and a checksum a shard. The manifest comes last:
where it stands, the dataset is whole. Until then everything lies in the folder .building below;
the same command again makes only the shards that are lacking there.
"""

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

from absl import flags, logging

from data_tools import records, shards, spill
from data_tools.documents import INPUT_FORMATS, find_input_files
from data_tools.progress import Progress
from data_tools.runners import default_num_workers, run_local
from data_tools.settings import Settings, refuse_other_settings
from keras_bert import files, program
from keras_bert.errors import InputError
from keras_bert.vocabulary import load_vocab

FLAGS = flags.FLAGS

_BUILDING, _PLAN, _VOCAB = ".building", "plan.json", "vocab.txt"


def create_pretraining_data(
    input_file: str,
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    num_workers: int = 0,
) -> dict[str, Any]:
    """Makes a dataset, goes on with an unfinished one, or finds it finished.

    Args:
        input_file: comma list of files, globs and directories.
        output_dir: where the dataset goes.
        vocab_file: the vocabulary.
        settings: the settings; the output is a function of these, the text and the vocabulary.
        num_workers: local processes, 0 for as many as there are processors.

    Returns:
        The manifest.

    Raises:
        InputError: for bad input, or an output directory made with other settings. What the
            directory held before is left as it was.
    """
    if num_workers < 0:
        raise InputError(f"--num_workers={num_workers}: expected at least 0")
    input_files = find_input_files(input_file)
    asked = {
        "settings": settings.to_dict(),
        "vocab": _vocab_entry(vocab_file),
        "inputs": [{"file": path, "bytes": os.path.getsize(path)} for path in input_files],
    }
    manifest_file = os.path.join(output_dir, records.MANIFEST)
    if os.path.exists(manifest_file):
        manifest = files.read_json(manifest_file)
        if manifest.get("format") != records.FORMAT:
            raise InputError(
                f"{manifest_file} is no manifest of this program: expected another --output_dir"
            )
        refuse_other_settings(output_dir, "a finished dataset", manifest, asked)
        logging.info("%s is finished: nothing to do", output_dir)
        return manifest

    with _locked_folder(output_dir) as building:
        plan = _plan(input_files, output_dir, vocab_file, settings, asked, building)
        shard_notes = _make_shards(plan, building, num_workers)
        return _finish(plan, shard_notes, building, output_dir)


def _vocab_entry(vocab_file: str) -> dict[str, Any]:
    size = len(load_vocab(vocab_file))
    return {"file": _VOCAB, "size": size, "sha256": files.sha256(vocab_file)}


@contextlib.contextmanager
def _locked_folder(output_dir: str) -> Iterator[str]:
    """Makes the folder .building and keeps other builds out of it."""
    building = os.path.join(output_dir, _BUILDING)
    is_new = not os.path.exists(output_dir)
    try:
        os.makedirs(building, exist_ok=True)
        lock = open(os.path.join(building, "lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror or error})"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"--output_dir={output_dir}: another build is at work there") from None
        try:
            yield building
        except InputError:
            # Without a plan there is nothing to go on with: leave no trace.
            if not os.path.exists(os.path.join(building, _PLAN)):
                shutil.rmtree(building, ignore_errors=True)
                if is_new:
                    with contextlib.suppress(OSError):
                        os.rmdir(output_dir)
            raise


def _plan(
    input_files: list[str],
    output_dir: str,
    vocab_file: str,
    settings: Settings,
    asked: dict[str, Any],
    building: str,
) -> dict[str, Any]:
    """Reads the corpus into temporary files, or finds that an earlier build has done it.

    Returns:
        settings (with the real number of shards), vocab, inputs, num_buckets: all that the shards
        depend on but the documents, which now lie in `building`.
    """
    plan_file = os.path.join(building, _PLAN)
    if os.path.exists(plan_file):
        plan = files.read_json(plan_file)
        refuse_other_settings(
            output_dir, f"an unfinished dataset (remove {building} to begin anew)", plan, asked
        )
        logging.info("%s: going on with an unfinished build", output_dir)
        return plan

    strangers = [name for name in os.listdir(output_dir) if name.endswith(".tfrecord")]
    if strangers:
        raise InputError(
            f"--output_dir={output_dir} holds {strangers[0]} but no {records.MANIFEST}: expected "
            "an empty folder or a dataset of this program"
        )
    for name in os.listdir(building):  # left by a build that was killed while it read
        if name != "lock":
            os.remove(os.path.join(building, name))

    num_buckets = settings.num_shards or spill.default_num_buckets(input_files)
    inputs = []
    with Progress("reading", sum(entry["bytes"] for entry in asked["inputs"]), "B") as progress:
        for entry in spill.spill_documents(
            input_files, settings.input_format, settings.random_seed, num_buckets, building
        ):
            inputs.append(entry)
            progress.add(entry["bytes"])
    num_documents = sum(entry["documents"] for entry in inputs)
    spill.check_corpus(input_files, num_documents, max(e.pop("longest_document") for e in inputs))

    num_shards = settings.num_shards or spill.default_num_shards(num_buckets, num_documents)
    settings = dataclasses.replace(settings, num_shards=num_shards)
    with open(vocab_file, "rb") as file:
        files.write_bytes(os.path.join(building, _VOCAB), file.read())
    plan = asked | {"settings": settings.to_dict(), "inputs": inputs, "num_buckets": num_buckets}
    files.write_json(plan_file, plan)
    return plan


def _make_shards(plan: dict[str, Any], building: str, num_workers: int) -> list[dict[str, Any]]:
    """Makes the shards that are lacking; returns the notes of all, by their number."""
    settings = Settings(**plan["settings"])
    notes, jobs = [], []
    for index in range(settings.num_shards):
        shard = os.path.join(building, records.shard_name(index, settings.num_shards))
        if os.path.exists(shard + ".json"):
            notes.append(files.read_json(shard + ".json"))
        else:
            jobs.append(
                shards.ShardJob(
                    index, plan["num_buckets"], building, os.path.join(building, _VOCAB), settings
                )
            )
    with Progress("writing", None, "examples") as progress:
        for note in run_local(shards.make_shard, jobs, num_workers or default_num_workers()):
            notes.append(note)
            progress.add(note["examples"], f"{len(notes)} of {settings.num_shards} shards")
    return sorted(notes, key=lambda note: note["index"])


def _finish(
    plan: dict[str, Any], notes: list[dict[str, Any]], building: str, output_dir: str
) -> dict[str, Any]:
    """Moves a complete dataset to its place and writes its manifest."""
    counted = ("documents", "sentences", "examples", "random_next", "masked", "real_tokens")
    counts = {name: sum(note[name] for note in notes) for name in counted}
    if not counts["examples"]:
        os.remove(os.path.join(building, _PLAN))  # Nothing here is worth going on with.
        raise InputError("--input_file: the tokenizer found no word in the whole corpus")
    lonely = sum(note["documents"] == 1 for note in notes)
    if lonely and counts["documents"] > 1:
        logging.warning(
            "%d of %d shards have one document, so that their random next sentences come from "
            "that same document: fewer --num_shards would do better",
            lonely,
            len(notes),
        )
    manifest = {
        "format": records.FORMAT,
        "version": records.VERSION,
        # For the record: random streams and the tokenizer's Unicode tables are theirs.
        "made_with": {name: metadata.version(name) for name in ("numpy", "tensorflow-text")},
        "settings": plan["settings"],
        "vocab": plan["vocab"],
        "inputs": plan["inputs"],
        "counts": counts,
        "shards": [
            {key: note[key] for key in ("file", "examples", "bytes", "sha256")} for note in notes
        ],
    }
    try:
        for name in [_VOCAB, *(note["file"] for note in notes)]:
            if os.path.exists(os.path.join(building, name)):  # else moved before a kill
                os.replace(os.path.join(building, name), os.path.join(output_dir, name))
    except OSError as error:
        raise InputError(
            f"--output_dir={output_dir}: cannot be written ({error.strerror or error})"
        ) from None
    files.write_json(os.path.join(output_dir, records.MANIFEST), manifest)
    shutil.rmtree(building, ignore_errors=True)
    logging.info(
        "%s: %d examples of %d documents in %d shards",
        output_dir,
        counts["examples"],
        counts["documents"],
        len(notes),
    )
    return manifest


def define_flags() -> None:
    """Defines this program's flags; their defaults are Google's."""
    default = Settings()
    flags.DEFINE_string("input_file", None, "Comma list of text files, globs and folders.")
    flags.DEFINE_string("output_dir", None, "Folder to write the dataset to.")
    flags.DEFINE_string("vocab_file", None, "Vocabulary, one word piece a line.")
    flags.DEFINE_enum(
        "input_format",
        default.input_format,
        INPUT_FORMATS,
        "sentences: one a line, a blank line between documents. prose: running text, a blank line "
        "between paragraphs, two or more (or a form feed) between documents.",
    )
    flags.DEFINE_bool("do_lower_case", default.do_lower_case, "Lower-case, for uncased models.")
    flags.DEFINE_bool(
        "do_whole_word_mask", default.do_whole_word_mask, "Mask all pieces of a word together."
    )
    flags.DEFINE_integer("max_seq_length", default.max_seq_length, "Pieces in an example.")
    flags.DEFINE_integer(
        "max_predictions_per_seq", default.max_predictions_per_seq, "Most pieces to predict."
    )
    flags.DEFINE_integer("random_seed", default.random_seed, "Seed of every draw.")
    flags.DEFINE_integer("dupe_factor", default.dupe_factor, "Times a document is used.")
    flags.DEFINE_float("masked_lm_prob", default.masked_lm_prob, "Share of pieces to predict.")
    flags.DEFINE_float(
        "short_seq_prob", default.short_seq_prob, "Share of documents cut shorter than the length."
    )
    flags.DEFINE_integer("num_shards", 0, "Files to write; 0 chooses by the corpus's size.")
    flags.DEFINE_integer("num_workers", 0, "Local processes; 0 takes every processor.")
    program.require("input_file", "output_dir", "vocab_file")


def main(argv: Sequence[str]) -> None:
    """Makes the dataset that the flags describe."""
    program.no_arguments(argv)
    settings = Settings(
        **{field.name: FLAGS[field.name].value for field in dataclasses.fields(Settings)}
    )
    create_pretraining_data(
        FLAGS.input_file, FLAGS.output_dir, FLAGS.vocab_file, settings, FLAGS.num_workers
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
