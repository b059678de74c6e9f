"""Pre-trains BERT on TFRecords: masked-LM and next-sentence prediction.

    python run_pretraining.py --bert_config=tiny.json --input_file=records --output_dir=out

The same command again continues an interrupted run and ends at the same weights.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from keras_bert.program import run, start_tensorflow

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "Training records: folders, files or globs, by comma.")
flags.DEFINE_string("eval_file", "", "Held-out records; without them, the training records.")
flags.DEFINE_string("output_dir", None, "The run's folder.")
flags.DEFINE_string("bert_config", "", "JSON file, or tiny, mini, small, medium, base, large.")
flags.DEFINE_alias("bert_config_file", "bert_config")
flags.DEFINE_string("vocab_file", "", "Vocabulary; without it, the one beside the records.")
flags.DEFINE_string("init_checkpoint", "", "Model directory, or an earlier run's folder.")
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
flags.DEFINE_integer("random_seed", 12345, "Decides weights, data order and dropout.")
flags.DEFINE_enum(
    "distribution_strategy",
    "default",
    ["default", "mirrored", "multi_worker_mirrored", "tpu"],
    "Devices: one, those of this machine, those of TF_CONFIG's machines, a TPU.",
)
flags.DEFINE_integer("num_devices", 0, "Devices of `mirrored`; 0: all.", lower_bound=0)
flags.DEFINE_enum(
    "mixed_precision", None, ["float32", "bfloat16"], "Compute type; by default the fastest here."
)
flags.DEFINE_bool("jit_compile", True, "Compile with XLA.")
flags.DEFINE_integer("gradient_accumulation_steps", 1, "Micro-batches a step.", lower_bound=1)

# What may change between a start and its continuation without changing the outcome.
FREE = (
    "bert_config_file",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
)


def main(argv: Sequence[str]) -> None:
    """Reads the flags, pre-trains, and prints the final figures."""
    del argv
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.tasks.pretraining import PretrainingSettings, pretrain
    from keras_bert.training.loop import TrainingSettings
    from keras_bert.training.strategy import fastest_precision, make_strategy

    precision = FLAGS.mixed_precision or fastest_precision()
    settings = PretrainingSettings(
        input_file=FLAGS.input_file,
        eval_file=FLAGS.eval_file,
        bert_config=FLAGS.bert_config,
        vocab_file=FLAGS.vocab_file,
        init_checkpoint=FLAGS.init_checkpoint,
        optimizer=FLAGS.optimizer,
        learning_rate=FLAGS.learning_rate,
        num_warmup_steps=FLAGS.num_warmup_steps,
        random_seed=FLAGS.random_seed,
        train=FLAGS.do_train,
        evaluate=FLAGS.do_eval,
        eval_batch_size=FLAGS.eval_batch_size,
        max_eval_steps=FLAGS.max_eval_steps,
        mixed_precision=precision,
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
    )
    training = TrainingSettings(
        num_train_steps=FLAGS.num_train_steps,
        train_batch_size=FLAGS.train_batch_size,
        gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
        jit_compile=FLAGS.jit_compile,
        log_steps=FLAGS.log_steps,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        keep_checkpoint_max=FLAGS.keep_checkpoint_max,
    )
    strategy = make_strategy(FLAGS.distribution_strategy, FLAGS.num_devices)
    own = FLAGS.get_flags_for_module("__main__")
    record = {flag.name: flag.value for flag in own if flag.name not in FREE}
    record["mixed_precision"] = precision
    results = pretrain(settings, training, strategy, Path(FLAGS.output_dir), record)
    for name, value in results.items():
        print(f"{name} = {value:.6g}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_dir"])
    run(main)
