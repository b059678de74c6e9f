"""Defines the settings of a pre-training run."""

from dataclasses import dataclass

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
    """The settings of a pre-training run, named like the flags of run_pretraining.py.

    Attributes:
        input_file: training records: folders, files or globs, comma-separated.
        eval_file: held-out records, in the same form; empty to evaluate on the training records.
        bert_config: a JSON file or the name of a bundled config; empty for the config of
            `init_checkpoint`.
        vocab_file: the vocabulary; empty for the one stored with the records.
        do_lower_case: whether records and vocabulary are lower-cased; None for the setting of the
            records or the checkpoint, or to infer it from the tokens.
        init_run: the folder of an earlier run, or empty. The run starts from its last checkpoint
            including the optimizer state, and continues its learning-rate schedule.
        optimizer: `adamw` or `lamb`.
        bias_correction: whether `adamw` corrects its bias; False in the BERT paper. `lamb` always
            does.
        learning_rate: the peak learning rate, reached after `num_warmup_steps`.
        num_warmup_steps: number of steps of the warm-up; None for WARMUP_SHARE of the steps, but
            at most MAX_WARMUP_STEPS.
        schedule_steps: number of steps until the learning rate is 0, including those of
            `init_run`; 0 for the run's own number of steps.
        dropout_prob: both dropout probabilities in training; None for those of the config, which
            `model/` keeps in either case.
        attention_dropout_prob: the dropout probability of attention probabilities in training; None
            for `dropout_prob`.
        do_train: whether to train; otherwise `init_checkpoint` is evaluated unchanged.
        do_eval: whether to evaluate at each checkpoint and at the end.
        max_eval_steps: number of evaluation batches; 0 for all records of `eval_file`. Without an
            `eval_file`, 0 means SAMPLE_SIZE training records, or after training fewer if
            EVALUATION_SHARE allows only fewer.
        mixed_precision: the compute dtype, `float32`, `bfloat16` or `float16`.
        optimizer_state_dtype: dtype of the optimizer's moments, `float32` or `bfloat16`.
        max_seq_length: the expected number of tokens per sequence; 0 accepts any.
        max_predictions_per_seq: the expected number of predictions per sequence; 0 accepts any.
        objective: `mlm_nsp`, `mlm` or `ltr` (objective.py); None for `mlm_nsp`, or for `mlm` if
            the records have no next sentences.
        export: whether the model will be exported, which needs a vocabulary; the only setting that
            does not change the outcome of the run.
    """

    input_file: str
    eval_file: str = ""
    bert_config: str = ""
    vocab_file: str = ""
    do_lower_case: bool | None = None
    init_checkpoint: str = ""
    init_run: str = ""
    optimizer: str = "adamw"
    bias_correction: bool = False
    learning_rate: float = 1e-4
    num_warmup_steps: int | None = None
    schedule_steps: int = 0
    dropout_prob: float | None = None
    attention_dropout_prob: float | None = None
    random_seed: int = 12345
    do_train: bool = True
    do_eval: bool = True
    eval_batch_size: int = 32
    max_eval_steps: int = 0
    mixed_precision: str = "float32"
    optimizer_state_dtype: str = "float32"
    max_seq_length: int = 0
    max_predictions_per_seq: int = 0
    objective: str | None = None
    export: bool = False

    def warmup_steps(self, num_train_steps: int) -> int:
        """Returns the number of warm-up steps of a run of `num_train_steps` steps."""
        if self.num_warmup_steps is not None:
            return self.num_warmup_steps
        share = round(WARMUP_SHARE * (self.schedule_steps or num_train_steps))
        return min(share, MAX_WARMUP_STEPS)

    def eval_examples(self, available: int, trained: int) -> int:
        """Returns the number of examples per evaluation.

        `available` is the number of records to evaluate on, and `trained` is the number of
        training steps times the size of a full batch.
        """
        size = self.eval_batch_size
        batches = self.max_eval_steps
        if not (batches or self.eval_file):
            batches = -(-SAMPLE_SIZE // size)
            if self.do_train:
                affordable = int(EVALUATION_SHARE / FORWARD_SHARE * trained) // size
                batches = max(1, min(batches, affordable))
        return min(available, batches * size) if batches else available
