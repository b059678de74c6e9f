"""Fine-tunes a model once, or once for each of several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from absl import logging

from keras_bert.common.files import read_json, write_json
from keras_bert.tasks.fine_tuning.pretrained import Pretrained
from keras_bert.tasks.fine_tuning.run import check_run, fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.tasks.fine_tuning.teacher import Teacher
from keras_bert.training.cluster import check_agreement
from keras_bert.training.run_directory import is_finished, log_finished, running


def fine_tune_seeds(
    run: FineTuningRun, start: Pretrained, task: FineTuningTask
) -> dict[str, object]:
    """Fine-tunes once for each seed, or resumes the run; raises the same errors as `fine_tune`.

    Returns:
        The content of results.json: for one seed, the result of `fine_tune`; for several, "seeds"
        and for each metric NAME "NAME_mean" and "NAME_std", the mean and the sample standard
        deviation over the seeds. "SPLIT_truncated" and `task.counts` are the same for all
        seeds.
    """
    output_dir, strategy = run.output_dir, run.strategy
    if run.distillation is not None:
        task = replace(task, teacher=Teacher(run, start))
    if len(run.seeds) == 1:
        return fine_tune(run.of_seed(run.seeds[0], output_dir), start, task)
    check_run(run, task)
    record = {**run.record, **start.record(), **task.record, "seeds": [*run.seeds]}
    record.pop("random_seed", None)
    check_agreement(strategy, record)
    if is_finished(output_dir, record, strategy):
        log_finished(output_dir)
        return read_json(output_dir / "results.json")
    with running(output_dir, record, strategy) as place:
        runs = []
        for seed in run.seeds:
            logging.info("Training with seed %d", seed)
            runs.append(fine_tune(run.of_seed(seed, output_dir / f"seed-{seed}"), start, task))
        results = {"seeds": [*run.seeds], **_mean_and_spread(runs, task.counts)}
        write_json(place / "results.json", results)
    return results


def _mean_and_spread(
    runs: Sequence[Mapping[str, float]], counts: Mapping[str, int]
) -> dict[str, float]:
    results = {}
    for name in runs[0]:
        if name in ("step", "best_step"):
            continue
        if name.endswith("_truncated") or name in counts:  # The same for all seeds.
            results[name] = runs[0][name]
            continue
        values = np.array([run[name] for run in runs], np.float64)
        results |= {f"{name}_mean": float(values.mean()), f"{name}_std": float(values.std(ddof=1))}
    return results
