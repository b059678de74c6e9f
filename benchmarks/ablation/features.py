"""Trains a tagger on the features of an arm's model, which stays fixed.

extract_features.py writes the hidden states of the last four layers for the sentences of WNUT-17,
once for each arm. tagger.py trains on them.
"""

import json
import shutil

from ablation.corpus import Folders, task_files
from ablation.fine_tuning import overall
from ablation.plan import Plan
from ablation.pretraining import checkpoint
from ablation.programs import Usage, run_program
from ablation.results import Result
from ablation.units import Unit, settings_of

_LENGTH = 128


def train_tagger(unit: Unit, study: Plan, folders: Folders) -> Result:
    """Trains a tagger on a unit's features.

    Returns:
        "last": the development scores after the last epoch; "test": the test scores of the same
        weights.
    """
    extraction = _extract(unit, study, folders)
    output = folders.work / "features" / unit.arm.name / f"{unit.features}-{unit.seed}.json"
    flags = {
        **settings_of(unit, study),
        **task_files(unit.task, folders),
        "features_dir": output.parent,
        "init_checkpoint": checkpoint(unit.arm, unit.percent, study, folders),
        "random_seed": unit.seed,
        "output_file": output,
    }
    usage = extraction + run_program("ablation.tagger", flags, folders.log)
    scores = json.loads(output.read_text())
    figures = {split: overall(of_split) for split, of_split in scores.items()}
    return Result(figures, round(usage.seconds, 1), round(usage.cpu_seconds, 1))


def delete_features(arm: str, folders: Folders) -> None:
    """Deletes the features of an arm, which take about a gigabyte."""
    shutil.rmtree(folders.work / "features" / arm, ignore_errors=True)


def _extract(unit: Unit, study: Plan, folders: Folders) -> Usage:
    """Writes the features of the splits that have none yet, and returns the time."""
    folder = folders.work / "features" / unit.arm.name
    usage = Usage()
    for flag, path in task_files(unit.task, folders).items():
        split = flag.removesuffix("_file")
        output = folder / f"{split}.npz"
        if output.exists():
            continue
        from keras_bert.tasks.ner.data import read_conll

        folder.mkdir(parents=True, exist_ok=True)
        text = folder / f"{split}.txt"
        lines = [" ".join(sentence.words) for sentence in read_conll(path)]
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        flags = {
            "input_file": text,
            "output_file": output,
            "init_checkpoint": checkpoint(unit.arm, unit.percent, study, folders),
            "max_seq_length": _LENGTH,
        }
        usage += run_program("extract_features.py", flags, folders.log)
    return usage
