r"""Continues the pre-training of a BERT on your own documents.

    keras-bert adapt --input=documents --input_format=mixed --init_checkpoint=bert \
        --output_dir=adapted

With --input_format=mixed, the documents are the text, HTML, Markdown, Word, Parquet, Arrow and
JSON-lines files in a folder. By default, they are text files with one sentence per line.
Some of them are held out. Frequent words of the others are added to the vocabulary of the
checkpoint, and the masked-LM training continues on their text. The results compare the masked-LM
loss on the held-out documents before and after the training. The output folder can be the
--init_checkpoint of fine-tuning.

To resume an interrupted adaptation, run the same command again.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import HeldOut, Reading, find_input_files
from data_tools.jobs import Progress
from keras_bert.errors import InputError
from keras_bert.files import read_json, sha256, write_json
from keras_bert.programs.adaptation_flags import FLAGS_THAT_MAY_CHANGE, define_flags
from keras_bert.programs.compilation_cache import use_compilation_cache
from keras_bert.programs.flags import own_flags
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import check_not_input_folder, check_output_dir, finish
from keras_bert.startup import start_tensorflow

if TYPE_CHECKING:
    from keras_bert.checkpoints.checkpoint import Checkpoint
    from keras_bert.programs.adaptation_stages import Adaptation

_NAME = "adapt"
_RUN_FILE, _RESULTS = "run.json", "results.json"


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Adapts the model, and prints the comparison of the held-out loss before and after."""
    reject_arguments(arguments)
    input_files = find_input_files(flags.input, flags.input_format, "input")
    output_dir = Path(flags.output_dir)
    _check_folders(flags, input_files)
    _check_contents(output_dir)
    use_compilation_cache()
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.programs.adaptation_stages import adapt
    from keras_bert.training.backend import make_strategy
    from keras_bert.training.run_folder import is_finished, log_finished, running

    adaptation = _adaptation(flags, input_files)
    strategy = make_strategy("default", 0, 0.0, 1)
    _check_batches(adaptation, strategy)
    record = _record(flags, adaptation)
    if is_finished(output_dir, record, strategy):
        log_finished(output_dir)
        results = read_json(output_dir / _RESULTS)
    else:
        with running(output_dir, record, strategy) as folder:
            results = adapt(adaptation, strategy, folder)
            write_json(folder / _RESULTS, results)
    finish(results, output_dir, export=False)
    logging.info(
        "Next, fine-tune the model, for example: keras-bert classify --init_checkpoint=%s "
        "--task_name=custom --train_file=TRAIN.csv --eval_file=EVAL.csv --output_dir=CLASSIFIER",
        output_dir,
    )


def _check_folders(flags: FlagValues, input_files: Sequence[str]) -> None:
    """Rejects an output directory that contains the input, or is inside of it."""
    check_output_dir(flags.output_dir, flags.init_checkpoint)
    entries = [entry.strip() for entry in flags.input.split(",")]
    check_not_input_folder(flags.output_dir, entries)
    place = Path(flags.output_dir).resolve()
    read = [*filter(os.path.isdir, entries), *filter(os.path.isdir, [flags.init_checkpoint])]
    for folder in read:
        if Path(folder).resolve() in place.parents:
            raise InputError(
                f"--output_dir={flags.output_dir}: is inside {folder}, which is read; expected "
                "another folder"
            )
    for path in input_files:
        if place in Path(path).resolve().parents:
            raise InputError(
                f"--output_dir={flags.output_dir}: contains the input {path}; expected another "
                "folder, so that output and input stay apart"
            )


def _check_contents(output_dir: Path) -> None:
    """Rejects an output directory with other files than those of an adaptation."""
    if (output_dir / _RUN_FILE).exists():
        settings = read_json(output_dir / _RUN_FILE).get("settings")
        if not isinstance(settings, dict) or settings.get("program") != _NAME:
            raise InputError(
                f"--output_dir={output_dir}: contains the run of another program ({_RUN_FILE}); "
                "expected a new folder"
            )
    elif output_dir.exists():
        visible = sorted(name for name in os.listdir(output_dir) if not name.startswith("."))
        if visible:
            raise InputError(
                f"--output_dir={output_dir}: contains other files, such as {visible[0]}; expected "
                "a new folder"
            )


def _adaptation(flags: FlagValues, input_files: list[str]) -> "Adaptation":
    from keras_bert.pretraining.settings import PretrainingSettings
    from keras_bert.programs.adaptation_stages import Adaptation, has_masked_lm_head
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.objective import TrainingSettings

    own: dict[str, Any] = {name: flag.value for name, flag in own_flags(flags).items()}
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    own |= {"input_file": ""}  # The records do not exist yet.
    reading, settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (Reading, PretrainingSettings, TrainingSettings)
    )
    checkpoint = _open_checkpoint(flags)
    if not has_masked_lm_head(checkpoint):
        logging.warning(
            "%s: has no masked-LM head; it is newly initialized, so the results before the "
            "training are those of an untrained head",
            checkpoint.path,
        )
    return Adaptation(
        input_files=input_files,
        reading=reading,
        held_out=HeldOut(flags.eval_share, flags.max_eval_documents),
        checkpoint=checkpoint,
        settings=settings,
        training=training,
        backend=BACKEND,
        **{
            name: own[name]
            for name in ("num_new_words", "min_frequency", "num_train_epochs", "warmup_proportion")
        },
    )


def _open_checkpoint(flags: FlagValues) -> "Checkpoint":
    from keras_bert.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(flags.init_checkpoint)
    checkpoint.require_vocab("expected a checkpoint with a vocabulary")
    if checkpoint.config.is_decoder:
        raise InputError(
            f"--init_checkpoint={flags.init_checkpoint}: is a left-to-right model (is_decoder); "
            "expected a bidirectional model"
        )
    positions = checkpoint.config.max_position_embeddings
    if flags.max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={flags.max_seq_length}: the model has only {positions} positions; "
            f"expected at most {positions}"
        )
    return checkpoint


def _check_batches(adaptation: "Adaptation", strategy: Any) -> None:
    """Rejects batches that cannot be divided or do not fit in memory, before the first stage."""
    from keras_bert.models.memory import check_batch_fits
    from keras_bert.training.objective import check_batch_sizes, check_train_batch_fits

    config, length = adaptation.checkpoint.config, adaptation.settings.max_seq_length
    rows = adaptation.settings.eval_batch_size
    check_batch_sizes(strategy, adaptation.training, rows)
    check_train_batch_fits(adaptation.training, 1, config, length)
    check_batch_fits(config, rows, length, f"evaluation with {rows} records per batch")


def _record(flags: FlagValues, adaptation: "Adaptation") -> Mapping[str, object]:
    """Returns the entries of run.json: everything that affects the result."""
    own = {
        name: flag.value
        for name, flag in own_flags(flags).items()
        if name not in FLAGS_THAT_MAY_CHANGE
    }
    return {
        "program": _NAME,
        **own,
        "mixed_precision": adaptation.settings.mixed_precision,
        "backend": adaptation.backend,
        "input_sha256": _checksum(adaptation.input_files),
    }


def _checksum(paths: Sequence[str]) -> str:
    """Returns a checksum of the contents of files."""
    digest = hashlib.sha256()
    size = sum(map(os.path.getsize, paths))
    with Progress("checking the input", size, "B") as progress:
        for path in paths:
            digest.update(sha256(path, progress.add).encode())
    return digest.hexdigest()


PROGRAM = Program(_NAME, __doc__, define_flags, main, resumable=True)
