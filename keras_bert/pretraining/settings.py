"""Defines the settings of a pre-training run."""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert.options import (
    ANY_MODEL,
    MAX_BATCH_SIZE,
    MAX_SEED,
    MAX_SEQ_LENGTH,
    advanced,
    option,
    same_as,
)
from keras_bert.training.settings import Precision

# More records than this would not change the printed digits of the mean metrics.
SAMPLE_SIZE = 100_000
# An evaluation on training records takes at most EVALUATION_SHARE of the training time. Per
# example, it takes up to FORWARD_SHARE of the time of training: there is only a forward pass, and
# compiling it takes some seconds. Measured for `tiny` after 1,000 steps: 0.40.
EVALUATION_SHARE, FORWARD_SHARE = 0.05, 1 / 2
# Devlin et al. 2019, A.2, have 10,000 of 1,000,000 steps. A short run needs a larger share: Adam
# without bias correction makes large updates until its second moments have settled, which takes
# about 1,000 steps (benchmarks/README.md, Ablations).
WARMUP_SHARE, MAX_WARMUP_STEPS = 0.1, 10_000
NEXT_SENTENCE = ("random", "order", "none")  # the next-sentence tasks of records


@dataclass(frozen=True)
class PretrainingSettings:
    """The settings of a pre-training run, apart from those of its steps.

    Attributes:
        init_run: the folder of an earlier run, or empty. The run starts from its last checkpoint
            including the optimizer state, and continues its learning-rate schedule.
        schedule_steps: number of steps until the learning rate is 0, including those of
            `init_run`; 0 for the run's own number of steps.
        export: whether the model will be exported, which needs a vocabulary; the only setting that
            does not change the outcome of the run.
    """

    GROUP: ClassVar[str] = "training"
    input_file: str = option(
        "",
        "Training records: comma-separated folders, files or globs. With --recipe, "
        "{max_seq_length} is replaced by the length of each phase.",
        required=True,
        unless="dry_run",
        in_recipe=False,
    )
    eval_file: str = option(
        "",
        "Held-out records for evaluation. Default: some of the training records.",
        in_recipe=False,
        group="data",
    )
    bert_config: str = option(
        "",
        "Model config: a JSON file, or tiny, mini, small, medium, base or large.",
        alias="bert_config_file",
        group="model",
    )
    vocab_file: str = option(
        "",
        "Vocabulary file. Default: the one in the folder of the records.",
        in_recipe=False,
        group="model",
    )
    do_lower_case: bool | None = advanced(
        None,
        "Whether text is lower-cased. Default: as in the records; otherwise derived from the "
        "vocabulary.",
        in_recipe=False,
    )
    init_checkpoint: str = option(
        "",
        f"Model to start from: {ANY_MODEL}. Default: random weights.",
        in_recipe=False,
        group="model",
    )
    init_run: str = ""
    optimizer: str = option("adamw", "Optimizer.", choices=("adamw", "lamb"))
    bias_correction: bool = advanced(
        False, "Whether AdamW corrects its bias; the published BERT does not, and LAMB always does."
    )
    learning_rate: float = option(1e-4, "Peak learning rate.", min=0)
    num_warmup_steps: int | None = option(
        None,
        "Number of steps in which the learning rate increases linearly to its peak. Default: 10% "
        "of the training steps, but at most 10,000.",
        min=0,
    )
    schedule_steps: int = 0
    dropout_prob: float | None = option(
        None, "Dropout rate in training. Default: that of the model config.", min=0, max=1
    )
    attention_dropout_prob: float | None = advanced(
        None,
        "Dropout rate of attention probabilities in training. Default: --dropout_prob. 0 allows "
        "fused attention on GPUs.",
        min=0,
        max=1,
    )
    random_seed: int = advanced(
        12345, "Seed for initial weights, data order and dropout.", min=0, max=MAX_SEED
    )
    do_train: bool = option(True, "Whether to train.", in_recipe=False)
    do_eval: bool = option(
        True,
        "Whether to evaluate at the end of training and, with --eval_file, at each checkpoint.",
    )
    eval_batch_size: int = advanced(
        32, "Number of examples per evaluation batch.", min=1, max=MAX_BATCH_SIZE
    )
    max_eval_steps: int = advanced(
        0,
        "Maximum number of evaluation batches; 0: all of --eval_file. Without --eval_file, 100,000 "
        "training examples, or fewer if these would take more than 5% of the training time.",
        min=0,
    )
    mixed_precision: str = same_as(Precision, "mixed_precision")
    optimizer_state_dtype: str = same_as(Precision, "optimizer_state_dtype")
    max_seq_length: int = advanced(
        0,
        "Expected sequence length of the records; 0: any. Other records are rejected.",
        min=0,
        max=MAX_SEQ_LENGTH,
    )
    max_predictions_per_seq: int = advanced(
        0,
        "Expected number of predictions per sequence in the records; 0: any. Other records are "
        "rejected.",
        min=0,
        max=MAX_SEQ_LENGTH,
    )
    objective: str | None = option(
        None,
        "mlm_nsp: masked LM and next-sentence prediction; mlm: masked LM only; ltr: left-to-right "
        "language model. Default: the objective that the records were created for.",
        choices=("mlm_nsp", "mlm", "ltr"),
    )
    export: bool = False

    def warmup_steps(self, num_train_steps: int) -> int:
        """Returns the number of warm-up steps of a run of `num_train_steps` steps."""
        if self.num_warmup_steps is not None:
            return self.num_warmup_steps
        share = round(WARMUP_SHARE * (self.schedule_steps or num_train_steps))
        return min(share, MAX_WARMUP_STEPS)

    def eval_examples(self, available: int, trained: int) -> int:
        """Returns the number of examples per evaluation, after training on `trained` examples."""
        size = self.eval_batch_size
        batches = self.max_eval_steps
        if not (batches or self.eval_file):
            batches = -(-SAMPLE_SIZE // size)
            if self.do_train:
                affordable = int(EVALUATION_SHARE / FORWARD_SHARE * trained) // size
                batches = max(1, min(batches, affordable))
        return min(available, batches * size) if batches else available
