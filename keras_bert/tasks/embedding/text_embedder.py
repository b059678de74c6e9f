"""Defines TextEmbedder, which converts texts to vectors."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert.models import BertEncoder
from keras_bert.serving.network import Network
from keras_bert.tasks.checks import check_texts
from keras_bert.tasks.embedding.processor import EmbedderSettings, EmbeddingProcessor
from keras_bert.tasks.embedding.sentence_transformers import SentenceTransformer
from keras_bert.tasks.embedding.served import ServedEmbedding
from keras_bert.tasks.fine_tuning.predict import check_finite
from keras_bert.tasks.loading import DEFAULT_MAX_SEQ_LENGTH, ModelOptions, Source
from keras_bert.tasks.prepared import Prepared
from keras_bert.tasks.task import Task
from keras_bert.text.tokenizer import BertTokenizer

_TEXT = "The Norman dynasty had a major impact on medieval Europe."
_POOLER = "encoder/pooler"
_DEFAULT = ModelOptions()


class TextEmbedder(Task):
    """Converts texts to vectors.

    Example:
        embedder = TextEmbedder.from_pretrained("bert")
        vectors = embedder.predict(["A text.", "Another one."])["mean"]

    Args:
        model: a `BertEncoder`.
        tokenizer: a tokenizer with the model's vocabulary.
        settings: text length and normalization.
    """

    task: ClassVar[str] = "embedding"
    optional_weights: ClassVar[tuple[str, ...]] = (_POOLER,)

    settings: EmbedderSettings
    processor: EmbeddingProcessor

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        max_seq_length: int | None = None,
        normalize: bool | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "TextEmbedder":
        """Loads the encoder of a model.

        Args:
            path: any checkpoint that `--init_checkpoint` accepts.
            max_seq_length: maximum number of tokens in a text; defaults to the maximum in training,
                then to the maximum in the sentence-transformers files, or 128.
            normalize: whether vectors are scaled to length 1; defaults to the saved setting, then
                to whether modules.json (sentence-transformers) contains a Normalize module.
            tokenizer: replaces the tokenizer of the checkpoint.
            dtype: dtype policy, such as "mixed_bfloat16"; defaults to Keras' global policy.

        Raises:
            InputError: the path cannot be opened, or a setting is out of range.
        """
        source = Source.open(path)
        source.check_heads(cls.task, cls.__name__)
        options = ModelOptions(tokenizer, dtype)
        return cls.from_source(
            source, max_seq_length=max_seq_length, normalize=normalize, options=options
        )

    @classmethod
    def from_source(
        cls,
        source: Source,
        *,
        max_seq_length: int | None = None,
        normalize: bool | None = None,
        options: ModelOptions = _DEFAULT,
    ) -> "TextEmbedder":
        """Creates the object from an open checkpoint."""
        checkpoint = source.checkpoint
        sentence_transformer = SentenceTransformer.of(checkpoint.path)
        model = BertEncoder(checkpoint.config, dtype=options.dtype)
        with checkpoint.open_weights() as stored:
            pooled = stored.layout.name(f"{_POOLER}/dense/kernel") in stored.shapes
        settings = EmbedderSettings(
            max_seq_length=source.max_seq_length(
                max_seq_length, sentence_transformer.max_seq_length or DEFAULT_MAX_SEQ_LENGTH
            ),
            normalize=source.setting("normalize", bool, normalize, sentence_transformer.normalize),
            pooling=sentence_transformer.pooling or source.setting("pooling", str, None),
            pooled=pooled,
        )
        return cls._load(source, model, source.tokenizer(options.tokenizer), settings)

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> EmbedderSettings:
        """Restores the settings from the content of an export's export.json."""
        names = info["signatures"]["serving_default"]["outputs"]
        return EmbedderSettings(
            info["max_seq_length"], info["normalize"], info["pooling"], "pooled" in names
        )

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Raises NotImplementedError: embeddings cannot be trained yet."""
        raise NotImplementedError("TextEmbedder cannot be trained yet; train another task object")

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Raises NotImplementedError: embeddings have no score yet."""
        raise NotImplementedError("TextEmbedder has no scores yet; compare the vectors of predict")

    def predict(self, texts: Sequence[str], batch_size: int = 32) -> dict[str, np.ndarray]:
        """Converts texts to vectors.

        Args:
            texts: n strings.
            batch_size: number of texts per batch.

        Returns:
            "cls", the last hidden state of [CLS]; "mean", the mean of the last hidden states; and
                "pooled", if the model has a pooler; float32 [n, H] each.
            "truncated", bool [n]: whether the end of the text was removed.
        """
        return self._predict(check_texts("texts", texts), batch_size)

    def make_processor(self) -> EmbeddingProcessor:
        """Creates the processor for the current settings."""
        return EmbeddingProcessor(self.tokenizer, self.settings)

    def served(self, network: Network) -> tf.Module:
        """Creates the module with the signatures of an export."""
        return ServedEmbedding(network, self.processor)

    def text_settings(self) -> dict[str, Any]:
        """Returns the text settings that export.json stores."""
        settings = self.settings
        return super().text_settings() | {
            "normalize": settings.normalize,
            "pooling": settings.pooling,
        }

    def example_request(self) -> dict[str, str]:
        """Returns {input name: string} for a warm-up request to a server."""
        return {"text": _TEXT}

    def _outputs(self, prepared: Prepared, batch_size: int) -> dict[str, np.ndarray]:
        """Returns {"vectors": float32 [n, 2 or 3, H]}; all hidden states need too much memory."""
        examples, names = prepared.examples, self.settings.names
        shape = [len(examples), len(names), self.model.config.hidden_size]
        vectors = np.zeros(shape, np.float32)
        for batch in self._runner.batches(examples, batch_size) if len(examples) else ():
            outputs = self._runner.forward(batch)
            mask = batch["input_mask"] == 1
            hidden = outputs["sequence_output"].astype(np.float32)[mask]
            splits = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
            parts = [self.processor.vectors(tf.constant(hidden), tf.constant(splits)).numpy()]
            if self.settings.pooled:
                parts.append(outputs["pooled_output"].astype(np.float32)[:, np.newaxis])
            index = batch["example_index"]
            vectors[index[index >= 0]] = np.concatenate(parts, axis=1)[index >= 0]
        check_finite({"vectors": vectors}, examples, per_token=False)
        return {"vectors": vectors}
