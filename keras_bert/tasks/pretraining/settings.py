"""The settings of a pre-training run, which inputs.py checks."""

from dataclasses import dataclass

# With this many records, more records do not change the printed digits of the mean metrics.
SAMPLE_SIZE = 100_000


@dataclass(frozen=True)
class PretrainingSettings:
    """The settings of a pre-training run; all but `export` can change its outcome.

    Attributes:
        input_file: training records: folders, files or globs, comma-separated.
        eval_file: held-out records, likewise; empty for the training records.
        bert_config: a JSON file or the name of a bundled config; empty with `init_checkpoint`.
        vocab_file: the vocabulary; empty for the one stored with the records.
        do_lower_case: whether records and vocabulary are lower-cased; None for the setting of the
            records or the checkpoint, otherwise inferred from the tokens.
        init_checkpoint: the initial checkpoint, or empty.
        init_run: the folder of an earlier run, or empty. The run starts from its last checkpoint
            including the optimizer state, and continues its learning-rate schedule.
        optimizer: `adamw` or `lamb`.
        learning_rate: the peak learning rate, reached after warm-up.
        num_warmup_steps: number of linear warm-up steps.
        schedule_steps: number of steps until the learning rate is 0, including those of
            `init_run`; 0 for the run's own number of steps.
        dropout_prob: both dropout probabilities in training; `model/` keeps those of the config.
            None for those of the config.
        random_seed: seed for initial weights, data order and dropout masks.
        do_train: whether to train; otherwise `init_checkpoint` is evaluated unchanged.
        do_eval: whether to evaluate at each checkpoint and at the end.
        eval_batch_size: number of examples per evaluation batch.
        max_eval_steps: number of evaluation batches; 0 for all records of `eval_file`, or
            SAMPLE_SIZE training records.
        mixed_precision: `float32`, `bfloat16` or `float16`.
        optimizer_state_dtype: type of the optimizer's moments, `float32` or `bfloat16`.
        max_seq_length: the expected length of the records; 0 accepts any.
        max_predictions_per_seq: the expected number of predictions per sequence; 0 accepts any.
        objective: `mlm_nsp`, `mlm` or `ltr` (objective.py); None for `mlm_nsp`, or for `mlm` if
            the records have no next sentences.
        export: whether the model will be exported, which needs a vocabulary.
    """

    input_file: str
    eval_file: str = ""
    bert_config: str = ""
    vocab_file: str = ""
    do_lower_case: bool | None = None
    init_checkpoint: str = ""
    init_run: str = ""
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    num_warmup_steps: int = 10_000
    schedule_steps: int = 0
    dropout_prob: float | None = None
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

    def eval_examples(self, available: int) -> int:
        """Returns the number of examples per evaluation, given the number of available records."""
        batches = self.max_eval_steps
        if not (batches or self.eval_file):
            batches = -(-SAMPLE_SIZE // self.eval_batch_size)
        return min(available, batches * self.eval_batch_size) if batches else available
