"""One fine-tuning run or several that differ by their seed: settings in; mean and spread out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.files import read_json, write_json
from keras_bert.tasks.fine_tuning.model import make_model
from keras_bert.tasks.fine_tuning.pretrained import Pretrained
from keras_bert.tasks.fine_tuning.run import check_run, fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningSettings
from keras_bert.tasks.fine_tuning.task import FineTuningTask
from keras_bert.training.cluster import check_agreement
from keras_bert.training.run import TrainingSettings
from keras_bert.training.run_directory import is_finished, running


def fine_tune_seeds(
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    record: Mapping[str, object],
    start: Pretrained,
    task: FineTuningTask,
    seeds: Sequence[int],
) -> dict[str, object]:
    """Fine-tunes once a seed, or goes on with it.

    Args:
        settings: as for `fine_tune`; a seed takes the place of its `random_seed`.
        training: as for `fine_tune`.
        strategy: as for `fine_tune`.
        output_dir: the folder of the one run; of several seeds, it gets a run's folder `seed-N`
            each, and run.json and results.json of them all.
        record: as for `fine_tune`.
        start: as for `fine_tune`.
        task: as for `fine_tune`.
        seeds: at least one.

    Returns:
        The figures of the one run; of several, {"seeds": [...]} and for each figure
        "NAME_mean" and "NAME_std", the sample standard deviation, as in results.json.

    Raises:
        InputError: as `fine_tune`.
    """
    if len(seeds) == 1:
        settings = replace(settings, random_seed=seeds[0])
        record = {**record, "random_seed": seeds[0]}
        return fine_tune(settings, training, strategy, output_dir, record, start, task)
    check_run(settings, training, strategy, task)
    whole = {**record, **start.record(), **task.record, "seeds": [*seeds]}
    whole.pop("random_seed", None)
    check_agreement(strategy, whole)
    if is_finished(output_dir, whole, strategy):
        logging.info("%s is finished; nothing to do", output_dir)
        return read_json(output_dir / "results.json")
    # What it refuses must not leave a run.json that would refuse the mended command.
    make_model(settings, strategy, start, task)
    with running(output_dir, whole, strategy) as place:
        runs = []
        for seed in seeds:
            logging.info("seed %d", seed)
            folder = output_dir / f"seed-{seed}"
            own = replace(settings, random_seed=seed)
            one = {**record, "random_seed": seed}
            runs.append(fine_tune(own, training, strategy, folder, one, start, task))
        results = {"seeds": [*seeds], **_mean_and_spread(runs)}
        write_json(place / "results.json", results)
    return results


def _mean_and_spread(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    results = {}
    for name in runs[0]:
        if name in ("step", "best_step"):
            continue
        values = np.array([run[name] for run in runs], np.float64)
        results |= {f"{name}_mean": float(values.mean()), f"{name}_std": float(values.std(ddof=1))}
    return results
