"""Pre-trains in phases, each of which starts from the model of the previous one.

    phase-1/ -> weights (with continue_optimizer, also optimizer state) -> phase-2/ -> ... -> model/

Every phase is an ordinary run in its own folder, so the same command resumes an interrupted phase.
The parent folder contains run.json, results.json and model/ for all phases together. If there are
several workers, worker 0 writes these files.
"""

import gc
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.model_directory import check_replaceable
from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path, read_json, write_json
from keras_bert.tasks.pretraining.inputs import PretrainingInputs, find_inputs
from keras_bert.tasks.pretraining.recipe import Phase
from keras_bert.tasks.pretraining.run import pretrain, workers_of
from keras_bert.tasks.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.training.checkpoint import list_checkpoints
from keras_bert.training.cluster import check_agreement, gather, share_of
from keras_bert.training.run import TrainingRun, TrainingSettings, check_batch_sizes
from keras_bert.training.run_folder import flat, is_finished, log_finished, running
from keras_bert.training.strategy import check_state_dtype

# Records for evaluation may have stored masks and another number of passes.
_MAY_DIFFER_IN_EVALUATION = ("dynamic", "dupe_factor")


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a recipe, ready to run; only the first phase uses `settings.init_checkpoint`."""

    phase: Phase
    settings: PretrainingSettings
    training: TrainingSettings
    record: Mapping[str, object]


def pretrain_phases(
    runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy, output_dir: Path
) -> dict[str, float]:
    """Pre-trains phase by phase, or resumes the interrupted phase.

    `output_dir` gets a folder `phase-N` for each phase, model/ and results.json of the last phase,
    and a run.json with the settings of the last phase and those that differ in the others. Returns
    the final metrics of the last phase, as in results.json.

    Raises:
        InputError: as for `pretrain`, with recipe and phase in the message. Also, before anything
            is written: the records do not match the recipe, or the phases do not match each other
            (vocabulary, casing, config or objective).
    """
    inputs = check_phases(runs, strategy)
    check_replaceable(output_dir / "model")
    all_phases = {**_record(runs, inputs), **workers_of(strategy)}
    lengths = {f"phase-{number}": asdict(run.training) for number, run in enumerate(runs, 1)}
    check_agreement(strategy, flat(all_phases) | flat(lengths))
    if is_finished(output_dir, all_phases, strategy):
        log_finished(output_dir)
        return read_json(output_dir / "results.json")
    with running(output_dir, all_phases, strategy) as folder:
        for number, run in enumerate(runs, 1):
            gc.collect()  # The programs of two phases may not fit in memory together.
            steps = run.training.num_train_steps
            logging.info("Starting phase %d of %d: %d steps", number, len(runs), steps)
            folder_of_phase = output_dir / f"phase-{number}"
            settings, record = run.settings, dict(run.record)
            if number > 1:
                previous = f"phase-{number - 1}"
                # A phase resumes from its own checkpoints only if all workers have some.
                checkpoints = list_checkpoints(folder_of_phase / "checkpoints")
                has_started = all(gather(strategy, bool(checkpoints)))
                continues_optimizer = run.phase.continue_optimizer and not has_started
                settings = _start_from(settings, output_dir / previous, continues_optimizer)
                record["init_checkpoint"] = previous
            with named(run.phase):
                results = pretrain(
                    settings,
                    TrainingRun(run.training, strategy, folder_of_phase, record, is_part=True),
                )
        if folder == output_dir:
            with atomic_path(output_dir / "model") as partial:
                shutil.copytree(output_dir / f"phase-{len(runs)}" / "model", partial)
        write_json(folder / "results.json", results)
    return results


def check_phases(
    runs: Sequence[PhaseRun], strategy: tf.distribute.Strategy
) -> list[PretrainingInputs]:
    """Finds the inputs of each phase, and checks that they match the recipe and each other.

    The inputs of each phase are found as if it had no previous phase.

    Raises:
        InputError: the inputs of a phase are unusable, or do not match.
    """
    found = []
    for run in runs:
        with named(run.phase):
            found.append(find_inputs(run.settings, run.training.num_train_steps))
            found[-1].data.share(*share_of(strategy))  # Raises if there are too few files.
            check_batch_sizes(strategy, run.training, run.settings.eval_batch_size)
            check_state_dtype(strategy, run.settings.optimizer_state_dtype)
            _check_records(run.phase, found[-1])
            first, requested = found[0].objective, found[-1].objective
            continues_optimizer = run.phase.continue_optimizer
            if first != requested and (continues_optimizer or "ltr" in (first, requested)):
                expected = "ltr in all phases or in none"
                if continues_optimizer:
                    expected = "the same objective with continue_optimizer"
                raise InputError(
                    f"objective {requested} cannot follow {first}; expected {expected}"
                )
            for name in ("vocab", "tokenizer_settings", "config"):
                if getattr(found[-1], name) != getattr(found[0], name):
                    raise InputError(
                        f"{run.settings.input_file}: {name} differs from that of the records of "
                        f"phase 1, {runs[0].settings.input_file}; expected the same"
                    )
    return found


def _start_from(
    settings: PretrainingSettings, previous: Path, continues_optimizer: bool
) -> PretrainingSettings:
    init_run = str(previous) if continues_optimizer else ""
    # No bert_config, because the checkpoint has the config with the size of the vocabulary.
    return replace(settings, init_checkpoint=str(previous), init_run=init_run, bert_config="")


def _check_records(phase: Phase, inputs: PretrainingInputs) -> None:
    for folder, manifest in (inputs.data.manifests | inputs.held_out.manifests).items():
        settings = manifest["settings"]
        if folder not in inputs.data.manifests:
            settings = {n: v for n, v in settings.items() if n not in _MAY_DIFFER_IN_EVALUATION}
        settings = {**settings, **TokenizerSettings.read(folder, settings).effective()}
        for name, value in phase.data.items():
            if name in settings and settings[name] != value:
                raise InputError(
                    f"data: {name} is {json.dumps(value)}, but {folder} was made with "
                    f"{json.dumps(settings[name])}"
                )


def _record(runs: Sequence[PhaseRun], inputs: Sequence[PretrainingInputs]) -> dict[str, object]:
    """Returns the settings of the last phase and, as "phase-N", those that differ in the others."""
    records = [
        {**run.record, **read.record(), "data": dict(run.phase.data)}
        for run, read in zip(runs, inputs, strict=True)
    ]
    last = records[-1]
    others = {
        f"phase-{number}": {name: v for name, v in record.items() if v != last.get(name)}
        for number, record in enumerate(records[:-1], 1)
    }
    return {**last, "phases": len(runs), **others}


@contextmanager
def named(phase: Phase) -> Iterator[None]:
    """Adds the recipe and the phase, if there is a recipe, to InputErrors raised in the block."""
    try:
        yield
    except InputError as error:
        if not phase.recipe:
            raise
        raise InputError(f"{phase.title}: {error}") from error
