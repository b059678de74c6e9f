"""The settings of a fine-tuning run, and all that the run needs as one object."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.training.run import TrainingRun


@dataclass(frozen=True)
class FineTuningSettings:
    """What a fine-tuning run is made of; each value can change its outcome.

    Attributes:
        init_checkpoint: what to start from: whatever `open_checkpoint` opens.
        vocab_file: the vocabulary; empty for the checkpoint's.
        do_lower_case: whether text is lower-cased; None takes what the checkpoint says.
        label_names: what the checkpoint's labels are called in the task's words, in the order of
            its logits; None takes what the checkpoint says.
        max_seq_length: pieces of an example at most, with [CLS] and [SEP].
        learning_rate: its peak, reached after the warm-up.
        num_train_epochs: passes over the training examples; a fraction is allowed.
        warmup_proportion: the share of the steps in which the learning rate rises.
        layer_decay: learning rate of a layer over that of the layer above it.
        bias_correction: Adam's; false as in the paper of BERT.
        weight_decay: AdamW's.
        num_frozen_layers: layers that keep their weights, from below: 1 for the embeddings, 2 for
            them and the first block, and so on.
        early_stopping_patience: evaluations without a better one that end training; 0 for never.
        length_pool: batches whose examples are sorted together by length; 1 for none.
        random_seed: decides fresh weights, data order and dropout masks.
        mixed_precision: `float32`, `bfloat16` or `float16`.
        optimizer_state_dtype: type of the optimizer's moments, `float32` or `bfloat16`.
        eval_batch_size: examples a batch where nothing is learnt.
        do_train: whether to train; else the checkpoint is used as it is.
        do_eval: whether to evaluate after each epoch, keep the best and report it.
        do_predict: whether to write predictions. This and `do_eval` do what there is data for.

    Raises:
        InputError: a value out of range.
    """

    init_checkpoint: str
    vocab_file: str = ""
    do_lower_case: bool | None = None
    label_names: Sequence[str] | None = None
    max_seq_length: int = 128
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1
    layer_decay: float = 1.0
    bias_correction: bool = True
    weight_decay: float = 0.01
    num_frozen_layers: int = 0
    early_stopping_patience: int = 0
    length_pool: int = 50
    random_seed: int = 12345
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
            raise InputError(f"--learning_rate={self.learning_rate} is not a number")
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
    """All that a fine-tuning run needs beside its task.

    `training.num_train_steps` 0 leaves the length to `settings.num_train_epochs`; the folder of
    several seeds gets a folder `seed-N` for each.

    Attributes:
        settings: what decides its outcome.
        seeds: at least one; each takes the place of `settings.random_seed`.
    """

    settings: FineTuningSettings
    seeds: Sequence[int]

    def of_seed(self, seed: int, output_dir: Path) -> "FineTuningRun":
        """Returns the run of one seed.

        Args:
            seed: its seed.
            output_dir: its folder.
        """
        return replace(
            self,
            settings=replace(self.settings, random_seed=seed),
            record={**self.record, "random_seed": seed},
            output_dir=output_dir,
            seeds=(seed,),
        )
