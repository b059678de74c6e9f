"""Trains an arm of ablation.py with transformers + torch, and compares the held-out losses.

    .venv/bin/python benchmarks/ablation_torch.py [--size=tiny]

Both start from the same weights, and train on the same batches of the same records with the same
phases and schedule, and AdamW as in Google's BERT, without bias correction and dropout. Ours is the
run of `ablation.py --arms=SIZE-mlm_nsp`, in bfloat16; it is trained first if it does not exist yet.
torch trains in `.peers` in float32 (ablation/torch_training.py). At each checkpoint of ours, both
are scored on all records of the held-out books, in the length of the phase.

torch's figures are stored in --results_dir. After a kill, its run starts from the beginning. The
exit code is 1 if the masked-LM losses at the end differ by more than 0.02.
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ablation.corpus import HELD_OUT, Folders, prepare_records
from ablation.plan import PLAN, Arm, Plan
from ablation.pretraining import pretrain, run_folder
from ablation.programs import STOPPED, ProgramFailed, Stopped, run_command
from ablation.results import Results
from ablation.units import Unit, pretraining_settings
from absl import app, flags
from workers import ROOT

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json

flags.DEFINE_string("size", "tiny", "size of the arm: tiny, mini or small")
flags.DEFINE_float("scale", 1.0, "factor for the steps, for a trial", lower_bound=1e-6)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data"), "folder of the public data")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ablation", "folder of records and models")
flags.DEFINE_string(
    "results_dir", str(ROOT / "benchmarks/ablation_results"), "folder of the results"
)
FLAGS = flags.FLAGS

TOLERANCE = 0.02  # Of the masked-LM loss after the last step, in nats.


def compare(
    arm: Arm, start: Arm, results: Results, folders: Folders, python: Path
) -> tuple[list[dict], list[dict]]:
    """Does the missing runs.

    Args:
        arm: an arm with the objective `mlm_nsp`.
        start: the arm with the initial weights of `arm`.
        results: the results of the study; those of torch are stored beside them.
        folders: the folders of the study.
        python: the Python that has torch and transformers.

    Raises:
        ProgramFailed: torch's run failed.

    Returns:
        The held-out losses at each checkpoint, as in metrics.jsonl, and those of torch.
    """
    study = results.study
    ours = results.get(Unit(arm))
    if ours is None:
        ours = pretrain(arm, study, folders)
        results.record(Unit(arm), ours)
    settings = training_settings(arm, study)
    file = results.folder / f"torch-{arm.name}.json"
    found = read_json(file) if file.exists() else {}
    if found.get("settings") != settings:
        pretrain(start, study, folders)
        given = folders.work / file.name
        write_json(given, with_paths(settings, arm, start, study, folders))
        if not python.exists():
            raise InputError(f"{python}: does not exist; run `make peers` first")
        command = [python, ROOT / "benchmarks/ablation/torch_training.py", given]
        with tempfile.TemporaryFile("w+") as output:
            code = run_command(command, output)
            output.seek(0)
            lines = output.read().splitlines()
        if code or not lines:
            raise ProgramFailed(
                f"torch_training.py: exit code {code}, {len(lines)} lines of output; expected the "
                "exit code 0 and the held-out losses in the last line"
            )
        found = {"settings": settings, "curve": json.loads(lines[-1])}
        write_json(file, found)
    return ours.figures["curve"], found["curve"]


def training_settings(arm: Arm, study: Plan) -> dict:
    """Returns the settings that determine torch's run, as JSON values."""
    own = pretraining_settings(arm, study)
    recipe = own["recipe"]["flags"]
    phases = study.phases_of(arm)
    return {
        "num_train_steps": sum(phase.steps for phase in phases),
        "num_warmup_steps": max(1, round(recipe["num_warmup_steps"] * study.scale_of(arm))),
        "learning_rate": own["learning_rate"],
        "every": study.checkpoint_interval(arm),
        "phases": [
            {
                **dataclasses.asdict(phase),
                "vocab_size": study.vocab_size,
                "seed": own["random_seed"],
            }
            for phase in phases
        ],
    }


def with_paths(settings: Mapping, arm: Arm, start: Arm, study: Plan, folders: Folders) -> dict:
    """Adds the paths of the initial weights and of the records of each phase."""
    records = prepare_records(arm.records, study, folders)
    held_out = prepare_records(HELD_OUT, study, folders)
    phases = [
        {
            **phase,
            "records": records.format(max_seq_length=phase["length"]),
            "held_out": held_out.format(max_seq_length=phase["length"]),
        }
        for phase in settings["phases"]
    ]
    return {**settings, "model": str(run_folder(start, folders) / "model"), "phases": phases}


def report(ours: Sequence[Mapping], theirs: Sequence[Mapping]) -> Iterator[str]:
    """Yields a table with the held-out losses of both at each checkpoint."""
    yield "| step | masked LM: ours | torch | difference | next sentence: ours | torch |"
    yield "| --- | --- | --- | --- | --- | --- |"
    by_step = {own["step"]: own for own in ours}
    for other in theirs:
        own = by_step[other["step"]]
        pair = [own["eval_masked_lm_loss"], other["masked_lm_loss"]]
        cells = [f"{other['step']}", *(f"{value:.4f}" for value in (*pair, pair[0] - pair[1]))]
        sentences = (own["eval_next_sentence_loss"], other["next_sentence_loss"])
        cells += [f"{value:.4f}" for value in sentences]
        yield f"| {' | '.join(cells)} |"


def last_difference(ours: Sequence[Mapping], theirs: Sequence[Mapping]) -> float:
    """Returns our masked-LM loss after the last step, less that of torch."""
    return ours[-1]["eval_masked_lm_loss"] - theirs[-1]["masked_lm_loss"]


def main(_) -> None:
    """Prints the comparison."""
    study = dataclasses.replace(PLAN, scale=FLAGS.scale)
    arm, start = study.arm(f"{FLAGS.size}-mlm_nsp"), study.arm(f"{FLAGS.size}-none")
    results = Results(Path(FLAGS.results_dir), study)
    folders = Folders(Path(FLAGS.data_dir).resolve(), Path(FLAGS.work_dir).resolve())
    try:
        curves = compare(arm, start, results, folders, ROOT / ".peers/bin/python")
    except (InputError, ProgramFailed) as error:
        sys.exit(f"ablation_torch.py: error: {error}")
    except Stopped as signal:
        print(f"ablation_torch.py: {signal}: run the same command again", file=sys.stderr)
        sys.exit(STOPPED)
    print("\n".join(report(*curves)))
    difference = last_difference(*curves)
    if abs(difference) > TOLERANCE:
        sys.exit(
            f"ablation_torch.py: the masked-LM losses at the end differ by {difference:.4f}; "
            f"expected at most {TOLERANCE}"
        )


if __name__ == "__main__":
    app.run(main)
