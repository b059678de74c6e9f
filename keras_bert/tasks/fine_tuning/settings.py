"""Defines the settings of a fine-tuning run, and the object that describes the whole run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_bert.errors import InputError
from keras_bert.tasks.defaults import TrainingDefaults
from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.training.objective import TrainingRun


@dataclass(frozen=True)
class FineTuningSettings:
    """Settings that can change the outcome of a fine-tuning run; invalid ones raise InputError.

    Attributes:
        init_checkpoint: the initial checkpoint, any path that `open_checkpoint` accepts.
        vocab_file: the vocabulary; empty for the checkpoint's.
        do_lower_case: whether to lower-case text; None for the checkpoint's setting.
        label_names: names that replace those of the checkpoint's labels, in the order of the
            logits; None to keep the names.
        max_seq_length: maximum number of tokens of an example, with [CLS] and [SEP].
        learning_rate: the peak learning rate, reached after warm-up.
        num_train_epochs: number of passes over the training examples; may be a fraction.
        warmup_proportion: the fraction of the steps used for warm-up.
        layer_decay: ratio of the learning rate of a layer to that of the layer above it.
        bias_correction: whether Adam corrects bias; False in the BERT paper.
        num_frozen_layers: number of layers to freeze from the bottom: 1 for the embeddings, 2 for
            the embeddings and the first block, and so on.
        early_stopping_patience: number of evaluations without improvement after which training
            stops; 0 for no early stopping.
        length_pool: number of batches whose examples are sorted by length together; 1 for random
            batches.
        mixed_precision: the compute dtype, `float32`, `bfloat16` or `float16`.
        optimizer_state_dtype: dtype of the optimizer's moments, `float32` or `bfloat16`.
        do_train: whether to train; otherwise the checkpoint is used unchanged.
        do_eval: whether to evaluate after each epoch, keep the best weights and report their
            metrics; ignored without a development set.
        do_predict: whether to write predictions; ignored without a test set.
    """

    init_checkpoint: str
    vocab_file: str = ""
    do_lower_case: bool | None = None
    label_names: Sequence[str] | None = None
    max_seq_length: int = 128
    learning_rate: float = TrainingDefaults.learning_rate
    num_train_epochs: float = float(TrainingDefaults.epochs)
    warmup_proportion: float = TrainingDefaults.warmup_proportion
    layer_decay: float = 1.0
    bias_correction: bool = True
    weight_decay: float = TrainingDefaults.weight_decay
    num_frozen_layers: int = 0
    early_stopping_patience: int = 0
    length_pool: int = TrainingDefaults.length_pool
    random_seed: int = TrainingDefaults.seed
    mixed_precision: str = "float32"
    optimizer_state_dtype: str = "float32"
    eval_batch_size: int = 32
    do_train: bool = True
    do_eval: bool = True
    do_predict: bool = True

    def __post_init__(self):
        if not (self.do_train or self.do_eval or self.do_predict):
            raise InputError("nothing to do: expected --do_train, --do_eval or --do_predict")
        if not math.isfinite(self.learning_rate):
            raise InputError(f"--learning_rate={self.learning_rate}: expected a finite number")
        if not 0 <= self.warmup_proportion < 1:
            raise InputError(
                f"--warmup_proportion={self.warmup_proportion}: expected at least 0 and below 1"
            )
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"--layer_decay={self.layer_decay}: expected above 0 and at most 1")
        if self.do_train and not 0 < self.num_train_epochs < math.inf:
            raise InputError(
                f"--num_train_epochs={self.num_train_epochs}: expected more than 0 and finite"
            )
        if self.early_stopping_patience and not self.do_eval:
            raise InputError("--early_stopping_patience needs --do_eval")


@dataclass(frozen=True, kw_only=True)
class FineTuningRun(TrainingRun):
    """A fine-tuning run without its task.

    If `training.num_train_steps` is 0, `settings.num_train_epochs` determines the number of steps.

    `teacher` is a fine-tuned model of the same task, any path that `open_checkpoint` accepts, from
    which the model learns as in `distillation`; without a teacher, they are "" and None.
    """

    settings: FineTuningSettings
    teacher: str = ""
    distillation: Distillation | None = None
