"""Defines the flags of pre-training, and which of them a recipe or a resumed run may change."""

from collections.abc import Mapping
from typing import Any

from keras_bert.programs.flags import MAX_BATCH_SIZE, MAX_SEQ_LENGTH, Definitions
from keras_bert.programs.run_flags import define_computing, define_export

# Flags that do not change the result, so they may differ when a run is resumed.
FLAGS_THAT_MAY_CHANGE = (
    "recipe",
    "recipe_scale",
    "dry_run",
    "export",
    "bert_config_file",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
    "worker_timeout",
)
# Flags that a recipe cannot set, since they depend on the user, the machine or this program.
FLAGS_NOT_IN_RECIPES = (
    "recipe",
    "recipe_scale",
    "dry_run",
    "input_file",
    "eval_file",
    "output_dir",
    "bert_config_file",
    "vocab_file",
    "do_lower_case",
    "init_checkpoint",
    "do_train",
    "export",
    "distribution_strategy",
    "num_devices",
    "model_parallel",
    "worker_timeout",
)


def define_flags(define: Definitions) -> None:
    """Defines the flags of the pre-training program."""
    define.string(
        "recipe",
        "",
        "Recipe of training phases: a TOML file, or bert-base, bert-large, bert-large-lamb, "
        "budget-24h or small-corpus.",
    )
    define.number(
        "recipe_scale",
        1.0,
        "Factor by which the numbers of steps of a recipe are multiplied.",
        lower_bound=0.0,
    )
    define.boolean(
        "dry_run",
        False,
        "Only print an estimate of the memory and the operations of the run; no files are written.",
    )
    define.string(
        "input_file",
        "",
        "Training records: comma-separated folders, files or globs. With --recipe, "
        "{max_seq_length} is replaced by the length of each phase.",
    )
    define.string(
        "eval_file", "", "Held-out records for evaluation. Default: some of the training records."
    )
    define.string("output_dir", "", "Folder for all files of the run.")
    define.string(
        "bert_config", "", "Model config: a JSON file, or tiny, mini, small, medium, base or large."
    )
    define.alias("bert_config_file", "bert_config")
    define.string(
        "vocab_file", "", "Vocabulary file. Default: the one in the folder of the records."
    )
    define.boolean(
        "do_lower_case",
        None,
        "Whether text is lower-cased. Default: as in the records; otherwise derived from the "
        "vocabulary.",
    )
    define.string(
        "init_checkpoint",
        "",
        "Checkpoint to start from, in any format, or run folder. Default: random weights.",
    )
    define.enum(
        "objective",
        None,
        ["mlm_nsp", "mlm", "ltr"],
        "mlm_nsp: masked LM and next-sentence prediction; mlm: masked LM only; ltr: left-to-right "
        "language model. Default: the objective that the records were created for.",
    )
    define.boolean("do_train", True, "Whether to train.")
    define.boolean(
        "do_eval",
        True,
        "Whether to evaluate at the end of training and, with --eval_file, at each checkpoint.",
    )
    define.integer(
        "max_seq_length",
        0,
        "Expected sequence length of the records; 0: any. Other records are rejected.",
        0,
        MAX_SEQ_LENGTH,
    )
    define.integer(
        "max_predictions_per_seq",
        0,
        "Expected number of predictions per sequence in the records; 0: any. Other records are "
        "rejected.",
        0,
        MAX_SEQ_LENGTH,
    )
    define.integer(
        "train_batch_size",
        32,
        "Number of examples per training step, on all devices together.",
        1,
        MAX_BATCH_SIZE,
    )
    define.integer(
        "batch_ramp_steps",
        0,
        "Number of steps over which the micro-batches per step grow from one to "
        "--gradient_accumulation_steps; 0: no growth.",
        lower_bound=0,
    )
    define.number(
        "dropout_prob",
        None,
        "Dropout rate in training. Default: that of the model config.",
        0.0,
        1.0,
    )
    define.number(
        "attention_dropout_prob",
        None,
        "Dropout rate of attention probabilities in training. Default: --dropout_prob. 0 allows "
        "fused attention on GPUs.",
        0.0,
        1.0,
    )
    define.integer(
        "eval_batch_size", 32, "Number of examples per evaluation batch.", 1, MAX_BATCH_SIZE
    )
    define.integer(
        "max_eval_steps",
        0,
        "Maximum number of evaluation batches; 0: all of --eval_file. Without --eval_file, 100,000 "
        "training examples, or fewer if these would take more than 5% of the training time.",
        lower_bound=0,
    )
    define.enum("optimizer", "adamw", ["adamw", "lamb"], "Optimizer.")
    define.boolean(
        "bias_correction",
        False,
        "Whether AdamW corrects its bias; the published BERT does not, and LAMB always does.",
    )
    define.number("learning_rate", 1e-4, "Peak learning rate.", lower_bound=0.0)
    define.integer("num_train_steps", 100_000, "Number of training steps.", lower_bound=1)
    define.integer(
        "num_warmup_steps",
        None,
        "Number of steps in which the learning rate increases linearly to its peak. Default: 10% "
        "of the training steps, but at most 10,000.",
        lower_bound=0,
    )
    define.integer(
        "save_checkpoints_steps", 1000, "Number of steps between two checkpoints.", lower_bound=1
    )
    define.integer("keep_checkpoint_max", 3, "Number of latest checkpoints to keep.", lower_bound=1)
    define.integer(
        "log_steps", 100, "Number of steps between two log lines of metrics.", lower_bound=1
    )
    define.integer(
        "random_seed", 12345, "Seed for initial weights, data order and dropout.", 0, 2**32 - 1
    )
    define_computing(define)
    define_export(define)
    define.require("input_file", "output_dir", unless="dry_run")
    define.check(
        ["recipe", "recipe_scale", "do_train"],
        _recipe_flags_are_valid,
        "--recipe_scale requires --recipe, and --recipe requires --do_train",
    )
    define.check(
        ["dry_run", "distribution_strategy"],
        _dry_run_uses_one_machine,
        "--dry_run uses only this machine; expected another --distribution_strategy than "
        "multi_worker_mirrored",
    )


def _recipe_flags_are_valid(values: Mapping[str, Any]) -> bool:
    return values["do_train"] if values["recipe"] else values["recipe_scale"] == 1.0


def _dry_run_uses_one_machine(values: Mapping[str, Any]) -> bool:
    return not (values["dry_run"] and values["distribution_strategy"] == "multi_worker_mirrored")
