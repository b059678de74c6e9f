"""Reproduces the ablations of Devlin et al. (2019) with models that are trained on 83 books.

    .venv/bin/python benchmarks/ablation.py --list
    .venv/bin/python benchmarks/ablation.py [--arms=mini-mlm,mini-ltr] [--tasks=MRPC,STS-B]
    .venv/bin/python benchmarks/ablation.py --report

It pre-trains each arm (ablation/plan.py), fine-tunes it on CoLA, SST-2, MRPC, STS-B, RTE, WNUT-17
and SQuAD with three seeds, and trains taggers on the features of a model. The result of each unit
of work is stored in --results_dir, which is under version control, as soon as the unit is finished.
The same command computes only the missing units. After a kill, it resumes the unit in progress; if
--work_dir was lost, it prepares the data and pre-trains the models again that are still needed.

Programs run at the lowest priority. Their output is in WORK_DIR/programs-PID.log. --scale=0.0005
is a trial of all programs with few steps; use another --results_dir for it.
"""

import dataclasses
import sys
from pathlib import Path

from ablation.plan import PLAN, TASKS
from ablation.plots import draw
from ablation.report import report
from ablation.run import Folders, Results, list_units, run_study, selected
from absl import app, flags
from texts import DATA
from workers import ROOT, check_names

from keras_bert.errors import InputError

flags.DEFINE_list("arms", [], "arms to run; default: all")
flags.DEFINE_list("tasks", [], "tasks to fine-tune on; default: all")
flags.DEFINE_multi_integer("seeds", [], "seed of fine-tuning, once or more; default: the plan's")
flags.DEFINE_bool("list", False, "only list the units, and what is done")
flags.DEFINE_bool("report", False, "only write the tables and the plot of the finished units")
flags.DEFINE_float("scale", 1.0, "factor for steps and epochs, for a trial", lower_bound=1e-6)
flags.DEFINE_string("data_dir", str(DATA), "folder of the public data")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ablation", "folder of records and models")
flags.DEFINE_string(
    "results_dir", str(ROOT / "benchmarks/ablation_results"), "folder of the results"
)
flags.DEFINE_string("plots_dir", None, "folder of the plot; default: --results_dir")
FLAGS = flags.FLAGS


def main(_) -> None:
    """Runs the missing units, or lists or reports the results."""
    check_names("arms", FLAGS.arms, [arm.name for arm in PLAN.arms])
    check_names("tasks", FLAGS.tasks, TASKS)
    plan = dataclasses.replace(PLAN, scale=FLAGS.scale)
    with_seeds = dataclasses.replace(plan, seeds=tuple(FLAGS.seeds) or plan.seeds)
    units = selected(with_seeds, FLAGS.arms, FLAGS.tasks)
    results = Results(Path(FLAGS.results_dir), plan)
    folders = Folders(Path(FLAGS.data_dir).resolve(), Path(FLAGS.work_dir).resolve())
    try:
        if FLAGS.list:
            print("\n".join(list_units(units, results)))
            return
        if not FLAGS.report:
            run_study(units, results, folders)
        results.folder.mkdir(parents=True, exist_ok=True)
        draw(results, Path(FLAGS.plots_dir or results.folder))
        print(report(results))
    except InputError as error:
        sys.exit(f"ablation.py: error: {error}")


if __name__ == "__main__":
    app.run(main)
