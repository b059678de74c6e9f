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

from ablation.corpus import Folders
from ablation.plan import PLAN, TASKS
from ablation.plots import draw_all
from ablation.programs import STOPPED, ProgramFailed, Stopped
from ablation.report import report
from ablation.results import Results
from ablation.study import Selection, list_units, run_study
from absl import app, flags
from workers import ROOT

from keras_bert.errors import InputError

flags.DEFINE_list("arms", [], "arms to run; default: all that are not optional")
flags.DEFINE_list("tasks", [], "tasks to fine-tune on; default: all")
flags.DEFINE_list("seeds", [], "seeds of fine-tuning; default: those of the plan")
flags.DEFINE_bool("list", False, "only list the units, what is done, and the time")
flags.DEFINE_bool("report", False, "only write tables and plots of the finished units")
flags.DEFINE_float("scale", 1.0, "factor for steps and epochs, for a trial", lower_bound=1e-6)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data"), "folder of the public data")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ablation", "folder of records and models")
flags.DEFINE_string(
    "results_dir", str(ROOT / "benchmarks/ablation_results"), "folder of the results"
)
flags.DEFINE_string("plots_dir", None, "folder of the plots; default: --results_dir")
FLAGS = flags.FLAGS


def main(_) -> None:
    """Runs the missing units, or lists or reports the results."""
    unknown = {*FLAGS.arms} - {arm.name for arm in PLAN.arms}
    unknown |= {*FLAGS.tasks} - {*TASKS}
    if unknown:
        sys.exit(
            f"--arms, --tasks: {', '.join(sorted(unknown))} unknown; expected arms from "
            f"{', '.join(arm.name for arm in PLAN.arms)}, and tasks from {', '.join(TASKS)}"
        )
    if not all(seed.isdecimal() for seed in FLAGS.seeds):
        sys.exit(f"--seeds={','.join(FLAGS.seeds)}: expected numbers, such as 0,1,2")
    study = dataclasses.replace(PLAN, scale=FLAGS.scale)
    with_seeds = dataclasses.replace(study, seeds=tuple(map(int, FLAGS.seeds)) or study.seeds)
    selection = Selection(FLAGS.arms, FLAGS.tasks)
    results = Results(Path(FLAGS.results_dir), study)
    folders = Folders(Path(FLAGS.data_dir).resolve(), Path(FLAGS.work_dir).resolve())
    try:
        if FLAGS.list:
            print("\n".join(list_units(with_seeds, selection, results)))
            return
        if not FLAGS.report:
            run_study(with_seeds, selection, results, folders)
        text = report(results, study)
        (results.folder / "report.md").write_text(text, encoding="utf-8")
        draw_all(results, study, Path(FLAGS.plots_dir or results.folder))
        print(text)
    except (InputError, ProgramFailed) as error:
        sys.exit(f"ablation.py: error: {error}")
    except Stopped as signal:
        print(f"ablation.py: {signal}: run the same command again to resume", file=sys.stderr)
        sys.exit(STOPPED)


if __name__ == "__main__":
    app.run(main)
