"""Pre-trains BERT on TFRecords: masked-LM and next-sentence prediction, or left to right.

    python run_pretraining.py --bert_config=tiny.json --input_file=records --output_dir=out

The same command again continues an interrupted run and ends at the same weights.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl import flags

from keras_bert.program import (
    define_computing,
    define_export,
    finish,
    no_arguments,
    require,
    run,
    start_tensorflow,
)

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "Training records: folders, files or globs, by comma.")
flags.DEFINE_string("eval_file", "", "Held-out records; without them, the training records.")
flags.DEFINE_string("output_dir", None, "The run's folder.")
flags.DEFINE_string("bert_config", "", "JSON file, or tiny, mini, small, medium, base, large.")
flags.DEFINE_alias("bert_config_file", "bert_config")
flags.DEFINE_string("vocab_file", "", "Vocabulary; without it, the one beside the records.")
flags.DEFINE_bool("do_lower_case", None, "Casing of the vocabulary, where records do not say.")
flags.DEFINE_string("init_checkpoint", "", "A checkpoint of any kind, or a run's folder.")
flags.DEFINE_enum(
    "objective",
    None,
    ["mlm_nsp", "mlm", "ltr"],
    "Masked pieces and next sentences, masked pieces alone, or left to right: each next piece by "
    "those before it. By default what the records hold.",
)
flags.DEFINE_bool("do_train", True, "Train.")
flags.DEFINE_bool("do_eval", True, "Evaluate at each checkpoint and at the end.")
flags.DEFINE_integer("max_seq_length", 0, "Refuse records of another length.", lower_bound=0)
flags.DEFINE_integer(
    "max_predictions_per_seq", 0, "Refuse records of another number.", lower_bound=0
)
flags.DEFINE_integer("train_batch_size", 32, "Examples a step, in all.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 32, "Examples a batch of an evaluation.", lower_bound=1)
flags.DEFINE_integer("max_eval_steps", 0, "Batches of an evaluation; 0: all.", lower_bound=0)
flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "The optimizer.")
flags.DEFINE_float("learning_rate", 1e-4, "Peak learning rate.", lower_bound=0.0)
flags.DEFINE_integer("num_train_steps", 100_000, "Training steps.", lower_bound=1)
flags.DEFINE_integer("num_warmup_steps", 10_000, "Steps of linear warm-up.", lower_bound=0)
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("keep_checkpoint_max", 3, "Checkpoints kept.", lower_bound=1)
flags.DEFINE_integer("log_steps", 100, "Steps between lines of figures.", lower_bound=1)
flags.DEFINE_integer("random_seed", 12345, "Decides weights, data order and dropout.", 0, 2**32 - 1)
define_computing()
define_export()
flags.register_multi_flags_validator(
    ["export", "objective"],
    lambda values: not (values["export"] and values["objective"] == "ltr"),
    message="--objective=ltr has nothing to --export: a left-to-right model is not served",
)

# What may change between a start and its continuation without changing the outcome.
FREE = (
    "export",
    "bert_config_file",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
    "worker_timeout",
)


def main(argv: Sequence[str]) -> None:
    """Reads the flags, pre-trains, and prints the final figures."""
    no_arguments(argv)
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.tasks.pretraining.inputs import PretrainingSettings
    from keras_bert.tasks.pretraining.run import pretrain
    from keras_bert.training.backend import BACKEND, fastest_precision, make_strategy
    from keras_bert.training.cluster import worker_index
    from keras_bert.training.loop import TrainingSettings

    own = {flag.name: flag.value for flag in FLAGS.get_flags_for_module("__main__")}
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (PretrainingSettings, TrainingSettings)
    )
    strategy = make_strategy(
        FLAGS.distribution_strategy, FLAGS.num_devices, FLAGS.worker_timeout, FLAGS.model_parallel
    )
    record = {name: value for name, value in own.items() if name not in FREE} | {"backend": BACKEND}
    results = pretrain(settings, training, strategy, Path(FLAGS.output_dir), record)
    if worker_index(strategy) == 0:
        finish(results, Path(FLAGS.output_dir), FLAGS.export)


if __name__ == "__main__":
    require("input_file", "output_dir")
    run(main, goes_on=True)
