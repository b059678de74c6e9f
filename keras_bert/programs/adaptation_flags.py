"""Defines the flags of `keras-bert adapt`, with defaults for some megabytes of text."""

from data_tools.settings import define_reading_flags
from keras_bert.programs.flags import MAX_BATCH_SIZE, MAX_REPEATS, MAX_SEQ_LENGTH, Definitions
from keras_bert.programs.run_flags import define_steps
from keras_bert.tasks.defaults import DEFAULTS

_DEFAULTS = DEFAULTS["fill_mask"]
# Flags that do not change the result, so they may differ when an adaptation is resumed.
FLAGS_THAT_MAY_CHANGE = ("input", "output_dir")


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string("input", None, "Documents: comma-separated folders, files or globs.")
    define_reading_flags(define)
    define.string(
        "init_checkpoint",
        None,
        "Checkpoint to start from, in any format, or run folder; it must have a vocabulary.",
    )
    define.string("output_dir", None, "Folder for all files of the adaptation.")
    define.number(
        "eval_share",
        0.05,
        "Fraction of the documents that are held out. Default: 5%, because the other documents are "
        "needed for training.",
        0.0,
        0.5,
    )
    define.integer(
        "max_eval_documents",
        500,
        "Maximum number of held-out documents. Default: 500, because more would not make the "
        "comparison of one corpus noticeably more precise, but each evaluation slower.",
        lower_bound=1,
    )
    define.integer(
        "num_new_words",
        1000,
        "Maximum number of new words in the vocabulary; 0: none. Default: 1000, about the number "
        "of [unusedN] tokens of the published BERT models, which need no additional rows.",
        lower_bound=0,
    )
    define.integer(
        "min_frequency",
        20,
        "Minimum number of occurrences of a new word. Default: 20, because the row of a rarer word "
        "would stay close to its initial value, the mean of the rows of its subwords.",
        lower_bound=1,
    )
    define.integer(
        "max_seq_length",
        128,
        "Number of tokens per record. Default: 128, because longer records cost more time per "
        "token; fine-tuning may still use all positions of the model.",
        5,
        MAX_SEQ_LENGTH,
    )
    define.integer(
        "train_batch_size",
        _DEFAULTS.batch_size,
        "Number of records per training step. Default: 32, because a few megabytes of text are "
        "some thousand records, which larger batches would divide into too few steps.",
        1,
        MAX_BATCH_SIZE,
    )
    define.number(
        "num_train_epochs",
        float(_DEFAULTS.epochs),
        "Number of passes over the training records. Default: 10, because each pass masks other "
        "tokens, so a small corpus can be read several times.",
        0.0,
        MAX_REPEATS,
    )
    define.integer(
        "num_train_steps",
        0,
        "Number of training steps. Default: 0, computed from --num_train_epochs, so that it "
        "follows the size of the corpus.",
        lower_bound=0,
    )
    define.number(
        "learning_rate",
        _DEFAULTS.learning_rate,
        "Peak learning rate. Default: 5e-5, half of that of pre-training, because the weights are "
        "already trained.",
        lower_bound=0.0,
    )
    define.number(
        "warmup_proportion",
        _DEFAULTS.warmup_proportion,
        "Fraction of the training steps in which the learning rate increases to its peak. Default: "
        "10%, because the optimizer starts without moments and a run of a few thousand steps needs "
        "a larger share than the 1% of pre-training.",
        0.0,
        1.0,
    )
    define.integer(
        "random_seed",
        _DEFAULTS.seed,
        "Seed for new weights, masks, data order and dropout.",
        0,
        2**32 - 1,
    )
    define_steps(define)
    define.require("input", "init_checkpoint", "output_dir")
