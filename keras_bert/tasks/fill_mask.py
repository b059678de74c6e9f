"""Predicts the tokens for [MASK].

    text [B] -> tokens -> [CLS] a [SEP]                                  preprocess
    logits of masks [P, V] -> best tokens of each mask [P, K]            best_tokens
    -> best tokens grouped by text [B, M, K]                             decode

B texts, P masks in all texts, M masks in the text with the most masks, K tokens per mask, V tokens
in the vocabulary.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.export.engines import NetworkSpec
from keras_bert.export.saved_model import ServedTask
from keras_bert.models import BertPretrainer
from keras_bert.options import check, option
from keras_bert.pretraining.masking import Masking, mask_examples
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.tasks.checks import (
    check_not_empty,
    check_texts,
    first_row,
    is_one_text,
    split_examples,
    split_rows,
)
from keras_bert.tasks.examples import Batcher, Examples, ModelRunner
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.prepared import Prepared, Processor, decoded
from keras_bert.tasks.task import EXAMPLE_TEXT, Task
from keras_bert.tasks.text_processor import ServedTexts, TextProcessor
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer

_MASKED_LM_PROB = 0.15
# The features of a batch that masking changes or adds, and their dtypes.
_MASKED = {
    "input_ids": tf.int32,
    "masked_lm_positions": tf.int32,
    "masked_lm_ids": tf.int32,
    "masked_lm_weights": tf.float32,
}
# The maximum number of masks per step. It limits the memory for logits, V floats per mask.
_MASKS_AT_ONCE = 128
_MASKS_AT_ONCE_SERVED = 256

# --- processor ---


@dataclass(frozen=True)
class MaskFillerSettings:
    """Settings of a `MaskFiller`.

    Attributes:
        max_seq_length: maximum number of tokens in a text, including [CLS] and [SEP]. A longer text
            is truncated, and masks in the truncated part are ignored.
        top_k: number of tokens to return for each mask.
    """

    max_seq_length: int = 128
    top_k: int = option(5, min=1)

    def __post_init__(self):
        check(self)


class MaskFillingProcessor(TextProcessor):
    """Converts texts to inputs of the network, and its logits at [MASK] to the best tokens."""

    def is_mask(self, input_ids: tf.Tensor) -> tf.Tensor:
        """Returns whether each token is [MASK], bool [T], for token ids int32 [T]."""
        return input_ids == self.tokenizer.mask_token_id

    def mask_counts(self, input_ids: tf.RaggedTensor) -> tf.Tensor:
        """Counts the masks of each text, int32 [B]."""
        is_mask = tf.cast(self.is_mask(input_ids.values), tf.int32)
        rows = tf.size(input_ids.row_splits) - 1
        return tf.math.unsorted_segment_sum(is_mask, row_ids(input_ids.row_splits), rows)

    def best_tokens(self, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the probabilities and ids of the best tokens, [P, K] each, for logits [P, V]."""
        return tf.math.top_k(tf.nn.softmax(logits), self.settings.top_k)

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: Segments) -> dict[str, tf.Tensor]:
        """Groups the best tokens of all masks, `scores` and `token_ids` [P, K], by text.

        Returns:
            `tokens` (strings), `token_ids` (int32) and `scores` (float32), [B, M, K] each, padded
            with "", -1 and 0 after the last mask of a text; and `truncated`, bool [B].
        """
        counts = self.mask_counts(inputs.input_ids)

        def by_text(values: tf.Tensor, padding: str | int | float) -> tf.Tensor:
            rows = tf.RaggedTensor.from_row_lengths(values, counts, validate=False)
            return rows.to_tensor(padding, shape=[None, None, self.settings.top_k])

        return {
            "tokens": by_text(tf.gather(self.tokenizer.vocab, outputs["token_ids"]), ""),
            "token_ids": by_text(outputs["token_ids"], -1),
            "scores": by_text(outputs["scores"], 0.0),
            "truncated": inputs.truncated,
        }


# --- serving signatures ---


class ServedFillMask(ServedTexts):
    """The SavedModel signatures of a pre-trained model, which map texts or token ids to tokens."""

    processor: MaskFillingProcessor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        processor = self.processor
        return NetworkSpec(
            {"scores": "mask", "token_ids": "mask"},
            top_k=processor.settings.top_k,
            mask_token_id=processor.tokenizer.mask_token_id,
        )

    def outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes the probabilities and ids of the best tokens of each mask, [P, K] each."""
        counts = self.processor.mask_counts(input_ids)
        shape = [self.network.config.hidden_size]
        hidden = self.network.reduced(input_ids, segment_ids, self._of_masks, shape, counts)
        scores, ids = self._best(hidden)
        return {"scores": scores, "token_ids": ids}

    def _of_masks(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Selects the hidden states of the p masks in some rows: [t, H] -> [p, H]."""
        return tf.gather(hidden, tf.where(self.processor.is_mask(input_ids))[:, 0])

    def _best(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the probabilities and ids of the best tokens, [P, K] each, for masks [P, H]."""
        masks = tf.shape(hidden)[0]
        steps = (masks + _MASKS_AT_ONCE_SERVED - 1) // _MASKS_AT_ONCE_SERVED
        shape = [None, self.processor.settings.top_k]
        parts = tuple(
            tf.TensorArray(dtype, steps, infer_shape=False, element_shape=shape)
            for dtype in (tf.float32, tf.int32)
        )

        def step(index: tf.Tensor, scores: tf.TensorArray, ids: tf.TensorArray) -> tuple:
            some = hidden[index * _MASKS_AT_ONCE_SERVED : (index + 1) * _MASKS_AT_ONCE_SERVED]
            values, indices = self.processor.best_tokens(self.network.masked_lm(some))
            return index + 1, scores.write(index, values), ids.write(index, indices)

        _, scores, ids = tf.while_loop(
            lambda index, *_: index < steps, step, (tf.constant(0), *parts), parallel_iterations=1
        )
        return tf.ensure_shape(scores.concat(), shape), tf.ensure_shape(ids.concat(), shape)


# --- task ---


class MaskFiller(Task):
    """Predicts the tokens for [MASK].

    Example:
        filler = MaskFiller.from_pretrained("bert")
        filler.predict(["The capital of France is [MASK]."])["tokens"][0]

    Args:
        model: a `BertPretrainer`.
        tokenizer: a tokenizer with the model's vocabulary and `keep_special_tokens`.
        settings: text length and number of tokens per mask.
    """

    task: ClassVar[str] = "fill_mask"
    settings_class: ClassVar[type] = MaskFillerSettings
    model_class: ClassVar[type[keras.Model]] = BertPretrainer
    processor_class: ClassVar[type[Processor]] = MaskFillingProcessor
    served_class: ClassVar[type[ServedTask]] = ServedFillMask
    example: ClassVar[Mapping[str, str]] = {"text": EXAMPLE_TEXT.replace("major", "[MASK]")}
    special_tokens: ClassVar[bool] = True
    export_options: ClassVar[tuple[str, ...]] = ("max_seq_length", "top_k")
    optional_weights: ClassVar[tuple[str, ...]] = ("encoder/pooler", "next_sentence")

    settings: MaskFillerSettings
    processor: MaskFillingProcessor

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        max_seq_length: int | None = None,
        top_k: int | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "MaskFiller":
        """Loads a pre-trained model.

        Args:
            path: any checkpoint that `--init_checkpoint` accepts, or the name of a model on the
                Hugging Face Hub, such as "bert-base-uncased".
            max_seq_length: maximum number of tokens in a text; defaults to the maximum in training,
                or 128.
            top_k: number of tokens to return for each mask; defaults to the saved setting, or 5.
            tokenizer: replaces the tokenizer of the checkpoint; needs `keep_special_tokens`.
            dtype: dtype policy, such as "mixed_bfloat16"; defaults to Keras' global policy.

        Raises:
            InputError: the path cannot be opened, the model has another task, or a setting is out
                of range.
        """
        return cls._open(
            path, max_seq_length=max_seq_length, top_k=top_k, tokenizer=tokenizer, dtype=dtype
        )

    @classmethod
    def settings_of_checkpoint(
        cls, checkpoint: Checkpoint, *, max_seq_length: int | None = None, top_k: int | None = None
    ) -> MaskFillerSettings:
        """Returns the settings: the arguments, or else those of the checkpoint or defaults."""
        settings = MaskFillerSettings(
            checkpoint.max_seq_length(max_seq_length), checkpoint.setting("top_k", int, top_k, 5)
        )
        vocab_size = checkpoint.config.vocab_size
        if settings.top_k > vocab_size:
            raise InputError(
                f"top_k={settings.top_k}: expected from 1 to {vocab_size}, the vocabulary size"
            )
        return settings

    def fit(
        self,
        texts: Any,
        *,
        text: str = "text",
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **options: Any,
    ) -> keras.callbacks.History:
        """Continues masked-LM pre-training on one device, and returns the history.

        Example:
            filler.fit(texts, validation_data=other_texts, epochs=3)

        New masks are drawn at every step (Liu et al. 2019, section 4.1). Unlike in `keras-bert
        adapt`, Adam corrects its bias, because a training with `fit` may be too short for the
        warm-up to replace that. For large corpora, use keras-bert pretrain.

        Args:
            texts: n strings, truncated to `max_seq_length` tokens: a list, a column, a table or a
                tf.data.Dataset, as for `TextClassifier.fit`.
            text: the name of the table's column of texts.
            validation_data: texts, with which `evaluate` runs after each epoch. The highest
                accuracy determines the best weights.
            callbacks: Keras callbacks.
            **options: fields of `FitSettings`: epochs, batch_size, learning_rate, seed, ...
        """
        settings, _ = self._check_fit(options, validation_data)
        (column,) = check_texts("texts", split_examples("texts", texts, None, text, None)[0])
        if settings.validation_split:
            split = split_rows(settings.validation_split, settings.seed, column)
            (column,), (validation_data,) = split
        if validation_data is not None:
            held_out = split_examples("validation_data", validation_data, None, text, None)[0]
            (held_out,) = check_texts("validation_data", held_out)
            check_not_empty("validation_data", held_out)
        evaluate = None
        if validation_data is not None:
            dev = self._prepared([held_out])
            self.report_truncation(dev.truncated, "validation texts")
            evaluate = functools.partial(self._score_masks, dev)
        objective, best = PretrainingObjective("mlm"), "masked_lm_accuracy"
        train = self._prepared([column])
        # The examples that an export shows get a [MASK].
        words = [text.split() for [text] in train.examples.shown]
        shown = [[" ".join([*w[: len(w) // 2], "[MASK]", *w[len(w) // 2 + 1 :]])] for w in words]
        train = train._replace(examples=replace(train.examples, shown=shown))
        return fit_task(self, train, objective, settings, evaluate, callbacks, best)

    def evaluate(
        self, texts: Any, batch_size: int = 32, seed: int = 0, *, text: str = "text"
    ) -> dict[str, float]:
        """Computes the masked-LM loss and accuracy with randomly chosen masks.

        Args:
            texts: n strings, given as for `fit`.
            batch_size: number of texts per batch.
            seed: seed of the masks, which depend only on it and on the index of each text.
            text: the name of the table's column of texts.

        Returns:
            "loss" and "masked_lm_loss", both in nats per masked token, and "masked_lm_accuracy".

        Raises:
            InputError: an argument is invalid, there are no texts, they have no tokens, or the
                model is an export, which returns only the likeliest tokens.
        """
        _ = self.model  # Raises an error for an exported model, which has no logits.
        (column,) = check_texts("texts", split_examples("texts", texts, None, text, None)[0])
        if not column:
            raise InputError("evaluate() got no texts; expected at least one")
        prepared = self._prepared([column])
        self.report_truncation(prepared.truncated, "texts")
        return self._score_masks(prepared, batch_size, seed)

    def _score_masks(
        self, prepared: Prepared, batch_size: int = 32, seed: int = 0
    ) -> dict[str, float]:
        loss = hits = count = 0.0
        for batch in self._runner.batches(prepared.examples, batch_size):
            masking = self._masking(batch["input_ids"].shape[1])
            rows = [
                mask_examples(ids, mask, masking, np.random.default_rng([seed, max(0, index)]))
                for ids, mask, index in zip(
                    batch["input_ids"][:, np.newaxis],
                    batch["input_mask"][:, np.newaxis],
                    batch["example_index"].tolist(),  # -1 for filler rows
                    strict=True,
                )
            ]
            masked = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
            is_masked = masked["masked_lm_weights"] * batch["example_weights"][:, np.newaxis] > 0
            ids = masked["masked_lm_ids"][is_masked]
            positions = np.nonzero(is_masked)[0], masked["masked_lm_positions"][is_masked]
            for part, logits in self._logits(batch | masked, *positions):
                logits = logits.astype(np.float64)
                logits -= logits.max(axis=-1, keepdims=True)
                of_ids = np.take_along_axis(logits, ids[part, np.newaxis], -1)[:, 0]
                loss += float((np.log(np.exp(logits).sum(-1)) - of_ids).sum())
                hits += float((logits.argmax(-1) == ids[part]).sum())
            count += len(ids)
        if not count:
            raise InputError("evaluate(): the texts have no tokens that can be masked")
        mean = loss / count
        return {"loss": mean, "masked_lm_loss": mean, "masked_lm_accuracy": hits / count}

    def predict(self, texts: Any, batch_size: int = 32, *, text: str = "text") -> dict[str, Any]:
        """Predicts the tokens for each [MASK].

        Args:
            texts: one string, or n strings given as for `fit`, with [MASK]. A text is truncated to
                `max_seq_length` tokens; masks in the removed part have no predictions.
            batch_size: number of texts per batch.
            text: the name of the table's column of texts.

        Returns:
            The values of one string, or for n strings:
            "tokens" (strings), "token_ids" (int32) and "scores" (probabilities, float32): each is a
            list of n arrays [M, top_k] for the M masks of the text in order, the most probable
            token first. "truncated", bool [n]: whether the end of the text was removed.
        """
        if is_one_text("texts", texts):
            return first_row(self.predict([texts], batch_size))
        columns = check_texts("texts", split_examples("texts", texts, None, text, None)[0])
        chunks = list(self._answers(columns, batch_size))
        answers = [row for chunk in chunks for row in _rows(chunk)]
        names = ("tokens", "token_ids", "scores")
        predictions: dict[str, Any] = {name: [row[name] for row in answers] for name in names}
        if "truncated" in chunks[0]:  # Not in exports of earlier versions.
            predictions["truncated"] = np.concatenate([chunk["truncated"] for chunk in chunks])
        return predictions

    @property
    def layers_without_loss(self) -> Sequence[keras.layers.Layer]:
        """The pooler, and the head of the next-sentence task."""
        return [self.model.encoder.pooler, self.model.next_sentence]

    def training_batches(self, examples: Examples, batcher: Batcher) -> tf.data.Dataset:
        """Creates the endless dataset of training batches, and masks tokens of each batch."""

        def mask(
            ids: np.ndarray, input_mask: np.ndarray, seeds: np.ndarray, weights: np.ndarray
        ) -> list[np.ndarray]:
            rng = np.random.default_rng([*seeds.view(np.uint32)[:4]])
            masked = mask_examples(ids, input_mask, self._masking(ids.shape[1]), rng)
            masked["masked_lm_weights"] *= weights[:, np.newaxis]
            return [masked[name] for name in _MASKED]

        def masked(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            arguments = [batch[name] for name in ("input_ids", "input_mask", "dropout_seed")]
            arguments.append(batch["example_weights"])
            values = tf.numpy_function(mask, arguments, [*_MASKED.values()], stateful=False)
            shape = [batcher.batch_size, None]
            values = [tf.ensure_shape(value, shape) for value in values]
            return batch | dict(zip(_MASKED, values, strict=True))

        return batcher.training(examples).map(masked).prefetch(2)

    def make_processor(self) -> Processor:
        """Creates the processor for the current settings."""
        if not self.tokenizer.keep_special_tokens:
            raise InputError("tokenizer splits [MASK]; expected one with keep_special_tokens=True")
        return super().make_processor()

    def export_entries(self) -> dict[str, Any]:
        """Returns the entries of export.json for preprocessing and decoding."""
        return super().export_entries() | {"top_k": self.settings.top_k}

    @functools.cached_property
    def _runner(self) -> ModelRunner:
        return ModelRunner(self.model.encoder, self.tokenizer)

    def _logits(
        self, batch: Mapping[str, np.ndarray], rows: np.ndarray, positions: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields the logits [C, V] of a slice of the tokens at `rows` and `positions`, [M] each."""
        if not len(rows):
            return
        hidden = self._runner.forward(batch)["sequence_output"][rows, positions]
        table = self.model.encoder.embeddings.word_embeddings
        for start in range(0, len(hidden), _MASKS_AT_ONCE):
            part = slice(start, start + _MASKS_AT_ONCE)
            logits = self.model.masked_lm(hidden[np.newaxis, part], None, table)
            yield part, keras.ops.convert_to_numpy(logits)[0]

    def _outputs(self, prepared: Prepared, batch_size: int) -> dict[str, np.ndarray]:
        """Computes "scores" and "token_ids", [P, top_k] each, of all P masks in their order."""
        examples = prepared.examples
        is_mask = self.processor.is_mask(tf.constant(examples.input_ids)).numpy()
        starts = np.concatenate([[0], np.cumsum(is_mask)])[examples.starts]
        shape = [int(is_mask.sum()), self.settings.top_k]
        best = {"scores": np.zeros(shape, np.float32), "token_ids": np.zeros(shape, np.int32)}
        for batch in self._runner.batches(examples, batch_size) if shape[0] else ():
            masks = batch["input_ids"] == self.tokenizer.mask_token_id
            rows, positions = np.nonzero(masks & (batch["example_index"] >= 0)[:, np.newaxis])
            nth = np.arange(len(rows)) - np.searchsorted(rows, rows)  # in the row
            targets = starts[batch["example_index"][rows]] + nth
            for part, logits in self._logits(batch, rows, positions):
                scores, ids = self.processor.best_tokens(tf.constant(logits))
                best["scores"][targets[part]] = scores.numpy()
                best["token_ids"][targets[part]] = ids.numpy()
        return best

    def _decoded(
        self, prepared: Prepared, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, np.ndarray]]:
        is_mask = self.processor.is_mask
        counts = [is_mask(x.input_ids.values).numpy().sum() for x in prepared.chunks]
        splits = np.cumsum(counts)[:-1]
        return decoded(self.processor, prepared, outputs, lambda values: np.split(values, splits))

    def _masking(self, length: int) -> Masking:
        predictions = max(1, round(length * _MASKED_LM_PROB))
        return Masking.from_vocab(self.tokenizer.vocab, _MASKED_LM_PROB, predictions)


def _rows(answers: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Splits the answers of a chunk, [B, M, K] each, into one dict per text, without padding."""
    rows = []
    for tokens, ids, scores in zip(
        answers["tokens"], answers["token_ids"], answers["scores"], strict=True
    ):
        is_mask = ids[:, 0] >= 0
        strings = np.array([[token.decode() for token in mask] for mask in tokens[is_mask]], object)
        strings = strings.reshape(-1, ids.shape[1])
        rows.append({"tokens": strings, "token_ids": ids[is_mask], "scores": scores[is_mask]})
    return rows
