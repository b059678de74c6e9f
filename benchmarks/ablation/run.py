"""Computes the missing units of the study, one after the other, and stores their results.

RESULTS_DIR/ARM.json               the results of an arm's finished units
WORK_DIR/data/                     vocabulary, records and SQuAD files
WORK_DIR/pretraining/ARM/          the run of an arm's pre-training
WORK_DIR/fine_tuning/, features/   deleted when their result is stored
WORK_DIR/programs-PID.log          the output of all programs

A file of results:

    {"arm": "mini-mlm", "units": {"MRPC/seed-0": {"settings": {...}, "figures": {...},
                                                  "seconds": 61.2, "cpu_seconds": 80.4}, ...}}

Files are replaced as a whole, so that a kill leaves either the file before a unit or the one after
it. Models are only in the work folder: if it is lost, an arm is pre-trained again as soon as one of
its units is missing, and its recorded result stays as it is.
"""

import fcntl
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workers import ROOT

from ablation.plan import EVALUATIONS, TASKS, Arm, Phase, Plan, Unit
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json

NICENESS = 19  # The lowest priority.
_WNUT = {
    "train_file": "wnut17train.conll",
    "eval_file": "emerging.dev.conll",
    "predict_file": "emerging.test.annotated",
}


class Results:
    """The results in a folder, for one plan."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder, self.plan = Path(folder), plan

    def get(self, unit: Unit) -> dict | None:
        """Returns the entry of a unit, with "figures" and "seconds"; None if it is missing.

        Raises:
            InputError: the file is damaged, or has a result of other settings.
        """
        entry = self.entries(unit.arm.name).get(unit.key)
        settings = self.plan.settings_of(unit)
        if entry is not None and entry["settings"] != settings:
            raise InputError(
                f"{self.path(unit.arm.name)}: {unit.key}: was computed with {entry['settings']}; "
                f"expected {settings}. Use another --results_dir, or delete the entry (after a "
                "change of the pre-training, the file) to compute it again"
            )
        return entry

    def seeds(self, unit: Unit) -> list[int]:
        """Returns the seeds of all results that differ from a unit only in their seed."""
        prefix = unit.key.removesuffix(str(unit.seed))
        keys = [key for key in self.entries(unit.arm.name) if key.startswith(prefix)]
        return sorted(int(key.removeprefix(prefix)) for key in keys)

    def record(self, unit: Unit, figures: Mapping, usage: "Usage") -> None:
        """Adds the result of a unit to the file of its arm, which it reads again before."""
        entry = {"settings": self.plan.settings_of(unit), "figures": figures}
        entry |= {"seconds": round(usage.seconds, 1), "cpu_seconds": round(usage.cpu_seconds, 1)}
        name = unit.arm.name
        units = {**self.entries(name), unit.key: entry}
        write_json(self.path(name), {"arm": name, "units": units})

    def path(self, arm: str) -> Path:
        """Returns the file of an arm."""
        return self.folder / f"{arm}.json"

    def entries(self, arm: str) -> dict[str, dict]:
        """Returns the entries of an arm; none if there is no file."""
        path = self.path(arm)
        return read_json(path)["units"] if path.exists() else {}


class Usage(NamedTuple):
    """The time of a program: wall-clock seconds, and CPU seconds of all threads."""

    seconds: float
    cpu_seconds: float


class Folders(NamedTuple):
    """The folders of the study: the input, ../shared/data, and the work folder."""

    data: Path
    work: Path

    def run(self, arm: Arm) -> Path:
        """Returns the folder of an arm's pre-training run."""
        return self.work / "pretraining" / arm.name

    def books(self, plan: Plan) -> tuple[list[Path], list[Path]]:
        """Returns the files of the training books and of the held-out books.

        Raises:
            InputError: a held-out book does not exist, or there are no other books.
        """
        folder = self.data / "corpus" / "gutenberg-85"
        held_out = [folder / name for name in plan.held_out]
        train = [path for path in sorted(folder.glob("*.txt*")) if path not in held_out]
        if not train or not all(path.exists() for path in held_out):
            raise InputError(f"{folder}: expected the books of the study, with {plan.held_out}")
        return train, held_out

    def run_program(self, program: str, flags: Mapping[str, object]) -> Usage:
        """Runs a program as a user does, at the lowest priority; its output goes to the log.

        `program` is a file in the repository, or a module that is run with -m and its arguments.

        Raises:
            InputError: the program failed; the message has the last lines of its output.
        """
        name = [ROOT / program] if program.endswith(".py") else ["-m", *program.split()]
        command = ["nice", "-n", str(NICENESS), sys.executable, *map(str, name)]
        command += [f"--{flag}={_text(value)}" for flag, value in flags.items()]
        # Only modules of this folder need benchmarks/, whose files have names of other packages.
        path = f"{ROOT}:{ROOT / 'benchmarks'}" if program.startswith("ablation.") else str(ROOT)
        log = self.work / f"programs-{os.getpid()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        start, cpu = time.monotonic(), _cpu_seconds()
        with log.open("a") as file:
            print(f"\n$ {' '.join(command)}", file=file, flush=True)
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
            )
        if done.returncode:
            lines = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise InputError(f"{program}: exit code {done.returncode}; the end of {log}:\n{lines}")
        return Usage(time.monotonic() - start, _cpu_seconds() - cpu)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# --- the study ---


def selected(plan: Plan, arms: Sequence[str], tasks: Sequence[str]) -> dict[Arm, list[Unit]]:
    """Returns {arm: its selected units}; an arm's pre-training is always among them."""
    return {
        arm: [u for u in plan.units_of(arm) if not (u.task and tasks and u.task not in tasks)]
        for arm in plan.arms
        if not arms or arm.name in arms
    }


def run_study(units: Mapping[Arm, Sequence[Unit]], results: Results, folders: Folders) -> None:
    """Computes the units that have no result, and records each when it is finished."""
    for arm, of_arm in units.items():
        missing = [unit for unit in of_arm if results.get(unit) is None]
        if not missing:
            continue
        is_trained = (folders.run(arm) / "results.json").is_file()
        if not is_trained or not missing[0].task:
            print(f"{arm.name}: pre-training", flush=True)
            figures = pretrain(arm, results.plan, folders)
            if not missing[0].task:
                results.record(Unit(arm), *figures)
        for unit in missing:
            if unit.task:
                compute = train_tagger if unit.features else fine_tune
                figures, usage = compute(unit, results.plan, folders)
                results.record(unit, figures, usage)
                delete(fine_tuning_folder(unit, folders))
                print(f"{arm.name}: {unit.key}: {usage.seconds:.0f} s", flush=True)
        delete(folders.work / "features" / arm.name)


def list_units(units: Mapping[Arm, Sequence[Unit]], results: Results) -> Iterable[str]:
    """Yields the lines of --list: for each arm, its units and the minutes of the finished ones."""
    for arm, of_arm in units.items():
        done = {unit: entry for unit in of_arm if (entry := results.get(unit))}
        minutes = sum(entry["seconds"] for entry in done.values()) / 60
        yield f"{arm.name}: {len(done)} of {len(of_arm)} units done in {minutes:.0f} min"
        for unit in of_arm:
            state = f"{done[unit]['seconds']:.0f} s" if unit in done else "missing"
            yield f"  {unit.key:45} {state}"


def delete(folder: Path) -> None:
    """Deletes a folder, if it exists. It is renamed first, so that no part of it is ever used."""
    deleted = folder.with_name(f"{folder.name}.deleted")
    shutil.rmtree(deleted, ignore_errors=True)  # Left by a kill.
    if folder.exists():
        folder.rename(deleted)
        shutil.rmtree(deleted)


# --- data ---


def prepare_records(kind: str, plan: Plan, folders: Folders) -> str:
    """Creates the vocabulary and one kind of records for each length, unless they exist.

    `kind` is `dynamic`, with masks that are drawn in training, or `held_out`, with fixed masks.
    Returns the path of the folders, with {max_seq_length} for the length.
    """
    output = folders.work / "data"
    output.mkdir(parents=True, exist_ok=True)
    train, held_out = folders.books(plan)
    reading = {"input_format": "gutenberg", "vocab_file": output / "vocab.txt"}
    with (output / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another process may prepare the same records.
        if not (output / "vocab.txt").exists():
            flags = {"input_file": train, "vocab_size": plan.vocab_size}
            folders.run_program("keras_bert build-vocab", {**reading, **flags})
        for length in {phase.length for arm in plan.arms for phase in plan.phases_of(arm)}:
            folder = output / f"{kind}-{length}"
            if not (folder / "manifest.json").exists():
                flags = {
                    **reading,
                    "input_file": held_out if kind == "held_out" else train,
                    "output_dir": folder,
                    "max_seq_length": length,
                    "max_predictions_per_seq": math.ceil(length * 0.15),
                    "dupe_factor": 1 if kind == "held_out" else plan.passes,
                    "dynamic": kind == "dynamic",
                }
                folders.run_program("keras_bert create-pretraining-data", flags)
    return str(output / f"{kind}-{{max_seq_length}}")


def task_files(task: str, folders: Folders) -> dict[str, Path]:
    """Returns the flags that name the files of a task."""
    if task == "WNUT-17":
        return {flag: folders.data / "ner" / "wnut17" / name for flag, name in _WNUT.items()}
    if task == "SQuAD":
        return split_squad(folders)
    return {"data_dir": folders.data / "glue" / task}


def split_squad(folders: Folders) -> dict[str, Path]:
    """Writes the answerable questions of the SQuAD file to two files, and returns their flags.

    Every fourth article by title is for evaluation, so that no context is in both.
    """
    paths = {
        f"{split}_file": folders.work / f"data/squad-{split}.json" for split in ("train", "eval")
    }
    if not all(path.exists() for path in paths.values()):
        content = read_json(folders.data / "squad" / "squad2_cs224n_dev.json")
        articles = sorted(content["data"], key=lambda article: article["title"])
        for article in articles:
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = [each for each in paragraph["qas"] if each["answers"]]
            article["paragraphs"] = [each for each in article["paragraphs"] if each["qas"]]
        train = [article for index, article in enumerate(articles) if index % 4]
        for path, part in zip(paths.values(), (train, articles[::4]), strict=True):
            write_json(path, {"version": "v1.1", "data": part})
    return paths


# --- pre-training ---


def pretrain(arm: Arm, plan: Plan, folders: Folders) -> tuple[dict, Usage]:
    """Pre-trains an arm, or resumes its run.

    Returns:
        The final held-out figures, with "curve": the held-out figures of each checkpoint and the
        length of their sequences; and the time: that of the training steps, or that of the last
        start if it was longer.
    """
    folder, phases = folders.run(arm), plan.phases_of(arm)
    settings = plan.pretraining_settings(arm)
    names = ("bert_config", "objective", "random_seed", "learning_rate")
    flags: dict[str, object] = {name: settings[name] for name in names}
    flags |= {
        "input_file": prepare_records("dynamic", plan, folders),
        "eval_file": prepare_records("held_out", plan, folders),
        "output_dir": folder,
        "mixed_precision": "bfloat16",
        "save_checkpoints_steps": plan.checkpoint_interval(arm),
        "keep_checkpoint_max": EVALUATIONS if arm.points else 1,
    }
    if arm.objective:
        flags |= {"recipe": arm.recipe, "recipe_scale": plan.scale}
        runs = [(folder / f"phase-{number}", phase) for number, phase in enumerate(phases, 1)]
    else:  # One step with the records of the last phase saves the initial weights.
        runs = [(folder, phases[-1]._replace(steps=1))]
        length = phases[-1].length
        flags |= {"num_train_steps": 1, "max_seq_length": length}
        flags |= {"train_batch_size": phases[-1].batch}
        for name in ("input_file", "eval_file"):
            flags[name] = str(flags[name]).format(max_seq_length=length)
    usage = folders.run_program("run_pretraining.py", flags)
    training, seconds = training_figures(runs)
    figures = {**json.loads((folder / "results.json").read_text()), **training}
    return figures, Usage(max(seconds, usage.seconds), usage.cpu_seconds)


def training_figures(runs: Sequence[tuple[Path, Phase]]) -> tuple[dict, float]:
    """Returns "step", "curve" and "tokens_per_second" of a run, and the seconds of its steps.

    The rate in a line of metrics.jsonl is an average over the steps since the previous line, or
    since the checkpoint from which the run resumed. Tokens include padding.
    """
    curve, start, tokens, seconds = [], 0, 0, 0.0
    for folder, phase in runs:
        last = 0
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "eval_loss" in row:
                curve.append({**row, "step": start + row["step"], "length": phase.length})
            if row.get("examples_per_second"):
                examples = (row["step"] - row.get("resumed_at_step", last)) * phase.batch
                tokens += examples * phase.length
                seconds += examples / row["examples_per_second"]
            last = row["step"]
        start += phase.steps
    rate = tokens / seconds if seconds else 0.0
    return {"step": start, "curve": curve, "tokens_per_second": rate}, seconds


def checkpoint(arm: Arm, percent: int, plan: Plan, folders: Folders) -> Path:
    """Returns the model of an arm, or its checkpoint after a share of the steps of all phases."""
    folder, interval = folders.run(arm), plan.checkpoint_interval(arm)
    if percent == 100:
        return folder
    step, number = plan.steps_of(arm) * percent // 100, 1
    for phase in plan.phases_of(arm):
        if step <= phase.steps:
            break
        step, number = step - phase.steps, number + 1
    step = max(interval, step // interval * interval)  # A scaled share may have no checkpoint.
    return folder / f"phase-{number}" / "checkpoints" / f"step-{step:08}"


# --- fine-tuning and features ---


def fine_tuning_folder(unit: Unit, folders: Folders) -> Path:
    """Returns the folder of a unit's run."""
    return folders.work / "fine_tuning" / unit.arm.name / unit.key.replace("/", "-")


def fine_tune(unit: Unit, plan: Plan, folders: Folders) -> tuple[dict, Usage]:
    """Fine-tunes a unit's model, or resumes its run.

    Returns:
        "last": the development scores of the last epoch, which select no weights; "best": those of
        the best epoch; "test": the test scores of the weights of the best epoch, if there is a
        tagged test set. And the time.
    """
    folder = fine_tuning_folder(unit, folders)
    flags = {
        **plan.settings_of(unit),
        **task_files(unit.task, folders),
        "init_checkpoint": checkpoint(unit.arm, unit.percent, plan, folders),
        "output_dir": folder,
        "random_seed": unit.seed,
        "mixed_precision": "bfloat16",
    }
    usage = folders.run_program(TASKS[unit.task].program, flags)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    evaluated = [
        {name.removeprefix("eval_"): row[name] for name in row if name.startswith("eval_")}
        for row in rows
    ]
    figures = {"last": overall([row for row in evaluated if row][-1])}
    for name, file in (("best", "results.json"), ("test", "test_results.json")):
        if (folder / file).exists():
            figures[name] = overall(json.loads((folder / file).read_text()))
    return figures, usage


def overall(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns scores without those of single entity types, such as f1_person."""
    of_a_type = ("precision_", "recall_", "f1_")
    return {name: value for name, value in scores.items() if not name.startswith(of_a_type)}


def train_tagger(unit: Unit, plan: Plan, folders: Folders) -> tuple[dict, Usage]:
    """Trains a tagger on features of an arm's model, which stays fixed.

    extract_features.py writes the hidden states of the last four layers for the sentences of
    WNUT-17, once for each arm; about a gigabyte.

    Returns:
        "last": the development scores after the last epoch; "test": the test scores of the same
        weights. And the time.
    """
    from keras_bert.tasks.ner.data import read_conll

    folder = folders.work / "features" / unit.arm.name
    folder.mkdir(parents=True, exist_ok=True)
    files = task_files(unit.task, folders)
    model = checkpoint(unit.arm, unit.percent, plan, folders)
    usages = []
    for flag, path in files.items():
        output = folder / f"{flag.removesuffix('_file')}.npz"
        if not output.exists():
            text = output.with_suffix(".txt")
            lines = [" ".join(sentence.words) for sentence in read_conll(path)]
            text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            flags = {"input_file": text, "output_file": output, "init_checkpoint": model}
            usages.append(
                folders.run_program("extract_features.py", {**flags, "max_seq_length": 128})
            )
    output = folder / f"{unit.features}-{unit.seed}.json"
    flags = {
        **plan.settings_of(unit),
        **files,
        "features_dir": folder,
        "init_checkpoint": model,
        "random_seed": unit.seed,
        "output_file": output,
    }
    usages.append(folders.run_program("ablation.tagger", flags))
    scores = json.loads(output.read_text())
    figures = {split: overall(of_split) for split, of_split in scores.items()}
    return figures, Usage(*map(sum, zip(*usages, strict=True)))
