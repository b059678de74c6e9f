"""The settings of a pre-training run; inputs.py checks them."""

from dataclasses import dataclass

# The mean figures of so many records are those of any number, to the digits that are shown.
SAMPLE_SIZE = 100_000


@dataclass(frozen=True)
class PretrainingSettings:
    """The settings of a pre-training run; all but `export` can change its outcome.

    Attributes:
        input_file: training records: folders, files or globs, comma-separated.
        eval_file: held-out records, likewise; empty for the training records.
        bert_config: a JSON file or a bundled config's name; empty with `init_checkpoint`.
        vocab_file: the vocabulary; empty for the one beside the records.
        do_lower_case: whether records and vocabulary are lower-cased; None takes what the records
            or the checkpoint say, else the casing of the tokens themselves.
        init_checkpoint: a checkpoint to start from, or empty.
        optimizer: `adamw` or `lamb`.
        init_run: an earlier run's folder whose last checkpoint, optimizer state and all, this one
            starts from, so that its learning-rate schedule continues; or empty.
        learning_rate: its peak, reached after the warm-up.
        num_warmup_steps: steps of linear warm-up.
        schedule_steps: steps after which the learning rate is 0, those of `init_run` counted; 0
            takes the run's own length.
        dropout_prob: both dropout probabilities in training, in place of the config's, which
            `model/` keeps; None takes the config's.
        random_seed: decides initial weights, data order and dropout masks.
        do_train: whether to train; else `init_checkpoint` is evaluated as it is.
        do_eval: whether to evaluate at each checkpoint and at the end.
        eval_batch_size: examples a batch of the evaluation.
        max_eval_steps: batches of an evaluation; 0 takes all, of training records as many as have
            SAMPLE_SIZE examples.
        mixed_precision: `float32`, `bfloat16` or `float16`.
        optimizer_state_dtype: type of the optimizer's moments, `float32` or `bfloat16`.
        max_seq_length: the length that the records must have; 0 accepts any.
        max_predictions_per_seq: likewise.
        objective: `mlm_nsp`, `mlm` or `ltr` (objective.py); None takes `mlm_nsp`, or `mlm` for
            records without next sentences.
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
        """Returns the examples of an evaluation.

        Args:
            available: records of `eval_file`, or those of training.
        """
        batches = self.max_eval_steps
        if not (batches or self.eval_file):
            batches = -(-SAMPLE_SIZE // self.eval_batch_size)
        return min(available, batches * self.eval_batch_size) if batches else available
