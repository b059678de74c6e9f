"""Defines EntityTagger, which finds named entities in texts and tags lists of words."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import keras
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.models import BertTokenClassifier
from keras_bert.serving.network import Network
from keras_bert.tasks.checks import (
    check_batch_size,
    check_list,
    check_not_empty,
    check_strings,
    check_validation_data,
)
from keras_bert.tasks.exported import Serve
from keras_bert.tasks.fitting import FitData, FitOptions
from keras_bert.tasks.loading import ModelOptions, Source
from keras_bert.tasks.losses import tag_accuracy, tag_loss
from keras_bert.tasks.ner.annotations import (
    aligned_tags,
    are_sentences,
    check_entities,
    check_sentences,
    check_word_tags,
    entity_types,
)
from keras_bert.tasks.ner.answers import listed_entities, listed_tags, served_tags
from keras_bert.tasks.ner.examples import (
    predicted_tags,
    prepare_sentences,
    prepare_texts,
    tagged_examples,
)
from keras_bert.tasks.ner.labels import label_names, tag_ids
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.tasks.ner.scores import entity_scores
from keras_bert.tasks.ner.served import ServedTagger
from keras_bert.tasks.prepared import Prepared
from keras_bert.tasks.task import Task
from keras_bert.text.tokenizer import BertTokenizer

_TEXT = "The Norman dynasty had a major impact on medieval Europe."
_DEFAULT = ModelOptions()


class _Annotated(NamedTuple):
    """Windows of sentences, and the IOB2 tags of each sentence."""

    prepared: Prepared
    tags: list[list[str]]


class EntityTagger(Task):
    """Finds named entities in texts, and tags words.

    Example:
        tagger = EntityTagger.from_pretrained("bert", labels=["PER", "LOC"])
        tagger.fit([["Ada", "lives", "in", "Ulm"]], [["B-PER", "O", "O", "B-LOC"]], epochs=3)
        tagger.predict(["Ada lives in Ulm."])  # {"types": [["PER", "LOC"]], "texts": ...}

    Args:
        model: a BertTokenClassifier.
        tokenizer: the tokenizer for the model's vocabulary.
        settings: labels and window length.
    """

    task: ClassVar[str] = "ner"
    optional_weights: ClassVar[tuple[str, ...]] = ("encoder/pooler",)

    settings: TaggerSettings
    processor: TaggingProcessor
    _serve_words: Serve | None = None

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "EntityTagger":
        """Loads a fine-tuned tagger, or adds a new head to a pre-trained model.

        Args:
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset.
            labels: entity types such as PER, or IOB2 tags including O, for a new head. For a model
                with a head, a name for each of its logits; by default the model's labels.
            max_seq_length: maximum number of tokens in a window; by default the value used in
                training, or 128. Longer texts are split into several windows.
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".

        Raises:
            InputError: the path cannot be opened, the model is of another task, or the labels do
                not match the model's head.
        """
        source = Source.open(path)
        source.check_heads(cls.task, cls.__name__)
        return cls.from_source(
            source,
            labels=labels,
            max_seq_length=max_seq_length,
            options=ModelOptions(tokenizer, dtype),
        )

    @classmethod
    def from_source(
        cls,
        source: Source,
        *,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        options: ModelOptions = _DEFAULT,
    ) -> "EntityTagger":
        """Creates the tagger from an open checkpoint, as `from_pretrained` does."""
        names = label_names(source.checkpoint, labels)
        settings = TaggerSettings(names, source.max_seq_length(max_seq_length))
        model = BertTokenClassifier(source.checkpoint.config, len(names), dtype=options.dtype)
        return cls._load(source, model, source.tokenizer(options.tokenizer), settings)

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> TaggerSettings:
        """Returns the settings recorded in an export's export.json."""
        return TaggerSettings(tuple(info["labels"]), info["max_seq_length"])

    @classmethod
    def from_export(
        cls, info: Mapping[str, Any], signatures: Mapping[str, Serve]
    ) -> "EntityTagger":
        """Creates a tagger that runs an exported SavedModel, and cannot be trained.

        `info` is the content of export.json, and `signatures` are the model's signatures by name.
        """
        loaded = super().from_export(info, signatures)
        loaded._serve_words = signatures["words"]
        return loaded

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the logits."""
        return self.settings.labels

    def fit(
        self,
        inputs: Any,
        targets: Any,
        *,
        validation_data: tuple[Any, Any] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "EntityTagger | None" = None,
        **options: Unpack[FitOptions],
    ) -> keras.callbacks.History:
        """Trains the model with `keras.Model.fit` on one device and returns its history.

        Args:
            inputs: n lists of words, or n texts.
            targets: for words, n lists of tags of any scheme, such as IOB2, one tag per word; "-"
                is an unknown label, which is not trained on. For texts, n lists of entities
                {"start": int, "end": int, "type": str} with character offsets. An entity must
                consist of whole words; text_words.py describes how texts are split into words.
            validation_data: (inputs, targets), evaluated after each epoch; the logs contain the
                scores as `val_f1` and so on.
            callbacks: Keras callbacks.
            teacher: a trained EntityTagger with the same labels and vocabulary, whose outputs the
                model learns in addition (distillation). The options distillation_weight
                and temperature belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.
        """
        self._check_fit(options, teacher)
        annotated = self._annotated(inputs, targets)
        held_out = None
        if validation_data is not None:
            expected = "a tuple (inputs, targets), as for fit()"
            held_out = self._annotated(*check_validation_data(validation_data, expected))
            check_not_empty("validation_data", held_out.tags)
        ids = tag_ids(annotated.tags, self.labels)
        data = FitData(
            examples=tagged_examples(annotated.prepared, ids),
            targets=lambda batch: {"logits": batch["tags"]},
            losses={"logits": tag_loss},
            metrics={"logits": [tag_accuracy]},
            pad_token_id=self.tokenizer.pad_token_id,
            max_seq_length=self.settings.max_seq_length,
            frozen=(self.model.encoder.pooler,),
            soft_kind="tags",
        )
        evaluate = (lambda: self._scores(held_out)) if held_out else None
        return self._fit(data, options, evaluate, callbacks, teacher)

    def evaluate(self, inputs: Any, targets: Any, batch_size: int = 32) -> dict[str, float]:
        """Computes the entity scores of the model on inputs and targets, given as for `fit`.

        Returns:
            "precision", "recall" and "f1" of all entities and of each type ("f1_PER"), and
                "accuracy", the share of words with the correct tag.

        Raises:
            InputError: an argument is invalid, or there are no sentences.
        """
        if not check_list("inputs", inputs, "strings, or of lists of words"):
            raise InputError("evaluate() got no sentences; expected at least one")
        if self.serve is not None and are_sentences(inputs):
            sentences = check_sentences("words", inputs)
            gold = check_word_tags(sentences, targets, self.labels)
            predicted = self.predict(sentences, batch_size)["tags"]
            return entity_scores(zip(gold, predicted, strict=True), entity_types(self.labels))
        return self._scores(self._annotated(inputs, targets), batch_size)

    def predict(self, inputs: Any, batch_size: int = 32) -> dict[str, list[list[Any]]]:
        """Finds the entities of texts, or tags words.

        Args:
            inputs: n texts, or n lists of words.
            batch_size: number of windows per batch.

        Returns:
            For texts, n lists each: "types" and "texts" of the entities; "starts" and "ends", their
                character offsets; and "scores", the mean probability of the labels of the entity's
                words.
            For words, n lists each, with one value per word: "tags" in IOB2, and "scores", the
                probability of the most probable label.
        """
        if are_sentences(inputs):
            return self._tagged(check_sentences("words", inputs), check_batch_size(batch_size))
        texts = check_strings("texts", inputs)
        return listed_entities(texts, self._answers([texts], batch_size))

    def make_processor(self) -> TaggingProcessor:
        """Creates the processor for the current settings."""
        return TaggingProcessor(self.tokenizer, self.settings)

    def served(self, network: Network) -> tf.Module:
        """Creates the tf.Module whose signatures are exported."""
        return ServedTagger(network, self.processor)

    def description(self) -> dict[str, Any]:
        """Returns the entries of export.json for the labels."""
        return {"labels": list(self.labels)}

    def example_request(self) -> dict[str, str]:
        """Returns the input strings of a warm-up request for a server."""
        return {"text": _TEXT}

    @property
    def label_names(self) -> Sequence[str]:
        """The names of the model's labels."""
        return self.labels

    def _annotated(self, inputs: Any, targets: Any) -> _Annotated:
        """Checks sentences or texts with their annotations, and splits them into windows.

        The arguments are as for `fit`.
        """
        _ = self.model  # Raises an error for an exported model, which has no Keras model.
        if are_sentences(inputs):
            sentences = check_sentences("words", inputs)
            tags = check_word_tags(sentences, targets, self.labels)
            return _Annotated(prepare_sentences(self.processor, sentences), tags)
        texts = check_strings("texts", inputs)
        entities = check_entities(texts, targets, self.labels)
        prepared, words = prepare_texts(self.processor, texts)
        tags = [
            aligned_tags(*each, where=f"entities[{index}]")
            for index, each in enumerate(zip(texts, entities, words, strict=True))
        ]
        return _Annotated(prepared, tags)

    def _scores(self, annotated: _Annotated, batch_size: int = 32) -> dict[str, float]:
        check_batch_size(batch_size)
        outputs = self._outputs(annotated.prepared, batch_size)
        predicted = predicted_tags(self.processor, annotated.prepared, outputs)
        return entity_scores(zip(annotated.tags, predicted, strict=True), entity_types(self.labels))

    def _tagged(self, sentences: list[list[str]], batch_size: int) -> dict[str, list[list[Any]]]:
        """Returns the "tags" and "scores" of the words of sentences, as `predict` does."""
        chunks = (
            self._answers([sentences], batch_size, self.processor.preprocess_words)
            if self._serve_words is None
            else served_tags(self._serve_words, sentences, batch_size)
        )
        return listed_tags(sentences, chunks)
