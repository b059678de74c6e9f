"""Defines EntityTagger, its objective, the signatures of its exports, and fine-tuning on files."""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf
from absl import logging
from keras import ops

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.engines import NetworkSpec
from keras_bert.export.inputs import TOKEN_ID_SPECS, UnpaddedRows
from keras_bert.export.saved_model import Outputs, ServedTask, Steps
from keras_bert.files import write_json
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks.checks import (
    check_list,
    check_not_empty,
    check_same_length,
    check_strings,
    check_validation_data,
    errors_within,
    first_row,
    is_one_text,
    reject_dataset,
    split_examples,
    split_rows,
)
from keras_bert.tasks.fine_tuning import (
    FineTuningRun,
    open_pretrained,
    prepare_sets,
    run_fine_tuning,
)
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.ner.data import (
    NerSettings,
    TaggedSentences,
    are_sentences,
    check_entities,
    check_sentences,
    check_types,
    check_word_tags,
    given_types,
    make_labels,
    read_data,
    write_conll,
)
from keras_bert.tasks.ner.processor import (
    TaggerSettings,
    TaggingProcessor,
    WordWindows,
    labeled,
    listed_entities,
    listed_tags,
    prepare_sentences,
    prepare_texts,
)
from keras_bert.tasks.ner.tag_schemes import (
    entity_scores,
    entity_types,
    iob2_labels,
    label_names,
    tag_ids,
)
from keras_bert.tasks.prepared import Arrays, PreparedSet, Processor
from keras_bert.tasks.task import Task, forgets_labels
from keras_bert.text.offsets import decode_texts
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.objective import Batch, OutputObjective, soft_label_losses

# The keys of an entity; `predict` returns their values under the plurals.
_ENTITY = ("start", "end", "type", "text", "score")


# --- training objective ---


class TaggingObjective(OutputObjective):
    """The objective for batches with "tags" [B, S], which are -1 for unlabeled tokens."""

    accuracy = "tag_accuracy"

    def label_losses(self, outputs: Mapping[str, Any], batch: Batch) -> tuple[Any, Any]:
        """Returns the losses and hits of the tokens, [B, S]; unlabeled ones have the weight 0."""
        logits, tags = outputs["logits"], ops.maximum(batch["tags"], 0)
        losses = ops.sparse_categorical_crossentropy(tags, logits, from_logits=True)
        return losses, ops.argmax(logits, axis=-1) == tags

    def soft_losses(
        self, teacher: Mapping[str, Any], outputs: Mapping[str, Any], temperature: float
    ) -> Any:
        """Returns the losses of the soft targets, [B, S]."""
        return soft_label_losses(teacher["logits"], outputs["logits"], temperature)

    def item_weights(self, batch: Batch) -> Any:
        """Returns the weights of the tokens, [B, S]: 1 for labeled tokens, and otherwise 0."""
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]


# --- serving signatures ---
# B texts or sentences, W words of the longest sentence, E the largest number of entities in a text,
# S tokens in a row, C labels.

# The values after the last entity of a text, or after the last word of a sentence.
PADDING = {"types": "", "texts": "", "starts": -1, "ends": -1, "scores": 0.0, "tags": ""}


class ServedTagger(ServedTask):
    """The SavedModel signatures of a tagger."""

    processor: TaggingProcessor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"logits": "token"})

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        text = tf.TensorSpec([None], tf.string, name="text")
        words = tf.TensorSpec([None, None], tf.string, name="words")
        return {
            "serving_default": Steps([text], self.processor.preprocess, self._entities),
            "words": Steps([words], self._sentences, self._tags),
            "token_ids": Steps(TOKEN_ID_SPECS, self.unpadded, self._token_tags),
        }

    def _entities(self, outputs: Outputs, inputs: WordWindows) -> dict[str, tf.Tensor]:
        """Finds the entities of texts, as `TaggingProcessor.decode` does, padded to [B, E]."""
        decoded = self.processor.decode(outputs, inputs)
        return {name: values.to_tensor(PADDING[name]) for name, values in decoded.items()}

    def _sentences(self, words: tf.Tensor) -> WordWindows:
        """Splits words, strings [B, W] with one sentence per row, padded with "", into windows."""
        is_word = words != ""
        lengths = tf.math.count_nonzero(is_word, axis=1)
        values = tf.boolean_mask(words, is_word)
        sentences = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        return self.processor.preprocess_words(sentences)._replace(text=words)

    def _tags(self, outputs: Outputs, inputs: WordWindows) -> dict[str, tf.Tensor]:
        """Returns the outputs of `TaggingProcessor.decode`, [B, W], with "" and 0 at padding."""
        decoded, places = self.processor.decode(outputs, inputs), tf.where(inputs.text != "")
        return {
            name: tf.tensor_scatter_nd_update(
                tf.fill(tf.shape(inputs.text), PADDING[name]), places, values.values
            )
            for name, values in decoded.items()
        }

    def _token_tags(self, outputs: Outputs, rows: UnpaddedRows) -> dict[str, tf.Tensor]:
        """Returns the most probable label and the logits of each token, [B, S], with padding."""
        logits = outputs["logits"]
        most_probable = rows.padded(1 + tf.argmax(logits, axis=-1, output_type=tf.int32))
        return {
            "tags": tf.gather(["", *self.processor.settings.labels], most_probable),
            "logits": rows.padded(logits),
            "truncated": rows.truncated,
        }


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
    settings_class: ClassVar[type] = TaggerSettings
    processor_class: ClassVar[type[Processor]] = TaggingProcessor
    served_class: ClassVar[type[ServedTask]] = ServedTagger
    optional_weights: ClassVar[tuple[str, ...]] = ("encoder/pooler",)
    limit: ClassVar[str] = ""  # Long sentences are split into windows.
    _public: ClassVar[tuple[str, ...]] = (*Task._public, "labels")

    settings: TaggerSettings
    processor: TaggingProcessor

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
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset, or the name of a
                model on the Hugging Face Hub, such as "bert-base-uncased".
            labels: entity types such as PER, or IOB2 tags including O, for a new head. For a model
                with a head, a name for each of its logits. By default the labels of the model's
                head, or else IOB2 tags of the types in the data of the first `fit`.
            max_seq_length: maximum number of tokens in a window; by default the value used in
                training, or 128. Longer texts are split into several windows.
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".

        Raises:
            InputError: the path cannot be opened, the model is of another task, or the labels do
                not match the model's head.
        """
        return cls._open(
            path,
            labels=labels,
            max_seq_length=max_seq_length,
            tokenizer=tokenizer,
            dtype=dtype,
        )

    @classmethod
    def settings_of_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
    ) -> TaggerSettings:
        """Returns the settings: the arguments, or else those of the checkpoint or defaults."""
        names = label_names(checkpoint, labels)
        return TaggerSettings(names, checkpoint.max_seq_length(max_seq_length))

    @classmethod
    def make_model(
        cls, config: BertConfig, settings: TaggerSettings, dtype: str | None
    ) -> BertTokenClassifier:
        """Creates a newly initialized tagger."""
        return BertTokenClassifier(config, len(settings.labels), dtype=dtype)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the logits."""
        return self.settings.labels

    @forgets_labels
    def fit(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        text: str = "text",
        label: str = "entities",
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "EntityTagger | None" = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model on one device and returns the history, as `keras.Model.fit` does.

        Example:
            entity = {"start": 0, "end": 3, "type": "PER"}
            tagger.fit(["Ada lives here.", "It rains."], [[entity], []], epochs=3)

        Args:
            inputs: n lists of words, or n texts; or a table with their targets, as for
                `TextClassifier.fit`, but not a tf.data.Dataset.
            targets: for words, n lists of tags of any scheme, such as IOB2, one tag per word; "-"
                is an unknown label, which is not trained on. For texts, n lists of entities
                {"start": int, "end": int, "type": str} with character offsets, or as doccano,
                Prodigy and Label Studio export them. An entity is extended to whole words, and of
                those that overlap, the longest is kept, with a warning.
            text: the name of the table's column of texts or words.
            label: the name of the table's column of entities or tags.
            validation_data: (inputs, targets) or a table, evaluated after each epoch; the logs
                contain the scores as `val_f1` and so on. The highest F1 determines the best
                weights.
            callbacks: Keras callbacks.
            teacher: a trained EntityTagger with the same labels and vocabulary, whose outputs the
                model learns in addition (distillation). The options distillation_weight
                and temperature belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.
        """
        settings, distillation = self._check_fit(options, validation_data, teacher)
        reject_dataset("inputs", inputs)
        reject_dataset("validation_data", validation_data)
        inputs, targets = split_examples("inputs", inputs, targets, text, label)
        if self.needs_labels:
            self._set_labels(iob2_labels(given_types(inputs, targets)), settings)
        if settings.validation_split:
            columns = check_list("inputs", inputs, "items"), check_list("targets", targets, "items")
            check_same_length(inputs=columns[0], targets=columns[1])
            split = split_rows(settings.validation_split, settings.seed, *columns)
            (inputs, targets), validation_data = split[0], tuple(split[1])
        prepared, tags, _ = self._annotated(inputs, targets)
        train, evaluate = labeled(prepared, tag_ids(tags, self.labels)), None
        if validation_data is not None:
            expected = "a tuple (inputs, targets), as for fit()"
            held_out = check_validation_data(validation_data, expected, text, label)
            with errors_within("validation_data"):
                held_out = self._annotated(*held_out)
            check_not_empty("validation_data", held_out.labels)
            evaluate = functools.partial(self._evaluate, held_out)
        objective = TaggingObjective(distillation)
        return fit_task(self, train, objective, settings, evaluate, callbacks, "f1", teacher)

    def evaluate(
        self,
        inputs: Any,
        targets: Any = None,
        batch_size: int = 32,
        *,
        text: str = "text",
        label: str = "entities",
    ) -> dict[str, float]:
        """Computes the entity scores of the model on inputs and targets, given as for `fit`.

        Returns:
            "precision", "recall" and "f1" of all entities and of each type ("f1_PER"), and
                "accuracy", the share of words with the correct tag.

        Raises:
            InputError: an argument is invalid, or there are no sentences.
        """
        reject_dataset("inputs", inputs)
        inputs, targets = split_examples("inputs", inputs, targets, text, label)
        if not check_list("inputs", inputs, "strings, or of lists of words"):
            raise InputError("evaluate() got no sentences; expected at least one")
        if self.is_export and are_sentences(inputs):
            sentences = check_sentences("inputs", inputs)
            gold = check_word_tags(sentences, targets, self.labels)
            predicted = self.predict(sentences, batch_size)["tags"]
            return self._scores(gold, predicted)
        return self._evaluate(self._annotated(inputs, targets), batch_size)

    def predict(
        self,
        inputs: Any,
        batch_size: int = 32,
        *,
        as_dicts: bool = False,
        text: str = "text",
    ) -> dict[str, list[Any]] | list[Any]:
        """Finds the entities of texts, or tags words.

        Args:
            inputs: n texts, n lists of words, or a table, as for `fit`; or one string.
            batch_size: number of windows per batch.
            as_dicts: whether to return the entities of texts in the form that `fit` takes.
            text: the name of the table's column of texts or words.

        Returns:
            For texts, n lists each: "types" and "texts" of the entities; "starts" and "ends", their
                character offsets; and "scores", the mean probability of the labels of the entity's
                words. With `as_dicts`, n lists of {"start", "end", "type", "text", "score"}.
            For words, n lists each, with one value per word: "tags" in IOB2, and "scores", the
                probability of the most probable label.
            For one string, the values or the list of this text.
        """
        if is_one_text("inputs", inputs):
            answers = self.predict([inputs], batch_size, as_dicts=as_dicts)
            return answers[0] if as_dicts else first_row(answers)
        reject_dataset("inputs", inputs)
        inputs, _ = split_examples("inputs", inputs, None, text, None)
        if are_sentences(inputs):
            sentences = check_sentences("inputs", inputs)
            if as_dicts:
                raise InputError("as_dicts=True: got lists of words; expected texts")
            preprocess = None if self.is_export else self.processor.preprocess_words
            chunks = self._answers([sentences], batch_size, preprocess, "words")
            return listed_tags(sentences, chunks)
        texts = check_strings("inputs", inputs)
        answers = listed_entities(texts, self._answers([texts], batch_size))
        if not as_dicts:
            return answers
        columns = [answers[f"{name}s"] for name in _ENTITY]
        return [
            [dict(zip(_ENTITY, entity, strict=True)) for entity in zip(*row, strict=True)]
            for row in zip(*columns, strict=True)
        ]

    def prepared_set(self, items: TaggedSentences, training: bool = False) -> PreparedSet:
        """Splits sentences into windows."""
        words = [sentence.words for sentence in items]
        prepared = prepare_sentences(self.processor, words, items.documents)
        if training:
            prepared = labeled(prepared, tag_ids(items.tags, self.labels))
        return PreparedSet(prepared, items.tags, items)

    def problem_counts(self, sets: Mapping[str, PreparedSet]) -> dict[str, int]:
        """Returns the numbers of entities that do not fit the words of their texts."""
        items = {name: each.items for name, each in sets.items()}
        if items.get("test") is items.get("dev"):
            items.pop("test", None)
        return {
            f"{name}_{kind}": count
            for name, each in items.items()
            for kind, count in each.counts.items()
        }

    def score_outputs(self, evaluated: PreparedSet, outputs: Arrays) -> dict[str, float]:
        """Scores the tags of sentences, also of entity types that do not occur in them."""
        return self._scores(evaluated.labels, self._predicted_tags(evaluated, outputs))

    def write_predictions(
        self, path: Path, predicted: PreparedSet, outputs: Arrays, scores: Mapping[str, float]
    ) -> None:
        """Writes the tags of sentences and, if there are gold tags, test_results.json."""
        tagged, path = predicted.items, path.with_name("predictions.conll")
        tags = self._predicted_tags(predicted, outputs)
        rows = [
            [sentence.words, *([sentence.tags] if sentence.tags else []), predicted_row]
            for sentence, predicted_row in zip(tagged.sentences, tags, strict=True)
        ]
        write_conll(path, rows)
        logging.info("Wrote %d sentences to %s", len(tags), path)
        if tagged.tags is not None:
            results = self._scores(tagged.tags, tags)
            write_json(path.with_name("test_results.json"), {"file": tagged.source} | results)
            logging.info("%s: f1=%.4g", tagged.source, results["f1"])

    def _annotated(self, inputs: Any, targets: Any) -> PreparedSet:
        """Checks sentences or texts with their annotations, given as for `fit`."""
        _ = self.model  # Raises an error for an exported model, which has no Keras model.
        if are_sentences(inputs):
            sentences = check_sentences("inputs", inputs)
            tags = check_word_tags(sentences, targets, self.labels)
            return PreparedSet(prepare_sentences(self.processor, sentences), tags)
        texts = check_strings("inputs", inputs)
        prepared, words = prepare_texts(self.processor, texts)
        return PreparedSet(prepared, check_entities(texts, targets, self.labels, words))

    def _predicted_tags(self, sentences: PreparedSet, outputs: Arrays) -> list[list[str]]:
        chunks = self._decoded(sentences.prepared, outputs)
        return [decode_texts(tags).tolist() for answers in chunks for tags in answers["tags"]]

    def _scores(
        self, tags: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Scores predicted tags in IOB2, whatever the scheme of the labels, against gold tags."""
        return entity_scores(zip(tags, predicted, strict=True), entity_types(self.labels))

    # --- fine-tuning ---

    @classmethod
    def fine_tune(cls, ner: NerSettings, run: FineTuningRun) -> dict[str, object]:
        """Fine-tunes a tagger on files, or resumes an unfinished run."""
        settings = run.settings
        start = open_pretrained(settings)
        splits = read_data(ner, new_tokenizer=start.tokenizer, **settings.does)
        labels, labels_from = _labels_of_run(splits.train, start)
        tagger_settings = TaggerSettings(tuple(labels), settings.max_seq_length)
        tagger = cls(None, start.tokenizer(), tagger_settings)

        for split in (*splits.dev.values(), *splits.test.values()):
            check_types(split, labels, labels_from)
        sets = prepare_sets(tagger, *splits)
        return run_fine_tuning(
            run, start, tagger, TaggingObjective(run.distillation), *sets, best="f1"
        )


def _labels_of_run(train: TaggedSentences | None, start: Checkpoint) -> tuple[list[str], object]:
    """Returns the model's labels, and the file or checkpoint that defines them."""
    if train:
        return make_labels(train, start.labels), train.source
    if start.named_labels is None:
        raise InputError(
            f"{start.path}: has no label names; expected a tagger, --label_names or --do_train"
        )
    if start.is_of_other_task("ner"):
        raise InputError(
            f"{start.path}: is a {start.architecture}; expected a tagger, or --do_train"
        )
    return start.named_labels, start.path
