"""Fine-tunes a tagger on words with tags or texts with spans.

It writes entity scores, predictions and the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_json
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.run import fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.tasks.loading import is_of_other_task
from keras_bert.tasks.ner.annotations import entity_types
from keras_bert.tasks.ner.conll import write_conll
from keras_bert.tasks.ner.data import (
    NerSettings,
    SentenceSplits,
    TaggedSentences,
    read_data,
)
from keras_bert.tasks.ner.entity_tagger import EntityTagger
from keras_bert.tasks.ner.examples import predicted_tags, prepare_sentences, tagged_examples
from keras_bert.tasks.ner.labels import check_labels, check_types, make_labels, tag_ids
from keras_bert.tasks.ner.objective import tagging_objective
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.tasks.ner.scores import entity_scores
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.tasks.prepared import Prepared
from keras_bert.training.log import Board


@dataclass(frozen=True)
class _Evaluated:
    """Sentences to score or to predict, split into windows."""

    tagged: TaggedSentences
    processor: TaggingProcessor
    prepared: Prepared

    def predicted(self, predict: Predict) -> list[list[str]]:
        """Predicts the tags of each sentence, in IOB2 whatever the scheme of the model's labels."""
        return predicted_tags(self.processor, self.prepared, predict(self.prepared.examples))

    def scores(self, predicted: Sequence[Sequence[str]]) -> dict[str, float]:
        """Scores predicted tags, a list for each sentence, against the gold tags.

        The result has scores of all entity types of the model, even if a type does not occur.
        """
        types = entity_types(self.processor.settings.labels)
        return entity_scores(zip(self.tagged.tags, predicted, strict=True), types)


def fine_tune_tagger(ner: NerSettings, run: FineTuningRun) -> dict[str, object]:
    """Fine-tunes a tagger once for each seed, or resumes an unfinished run.

    Returns:
        The scores of results.json: accuracy, precision, recall and f1 on the development sentences,
        and the precision, recall and f1 of each entity type.
    """
    settings = run.settings
    start = open_pretrained(settings)
    splits = read_data(
        ner,
        new_tokenizer=start.tokenizer,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(ner, splits, start, settings.max_seq_length, run.distillation)
    return fine_tune(run, start, task)


def make_task(
    ner: NerSettings,
    splits: SentenceSplits,
    start: Pretrained,
    max_seq_length: int,
    distillation: Distillation | None = None,
) -> FineTuningTask:
    """Creates the task that trains on, scores and predicts the sentences of a run."""
    labels, source = _labels(splits.train, start)
    processor = TaggingProcessor(start.tokenizer(), TaggerSettings(tuple(labels), max_seq_length))

    def prepared(split: TaggedSentences) -> Prepared:
        documents = [sentence.document for sentence in split.sentences]
        words = [sentence.words for sentence in split.sentences]
        return prepare_sentences(processor, words, documents if ner.document_context else None)

    def evaluated(split: TaggedSentences | None) -> _Evaluated | None:
        if split is None:
            return None
        check_types(split, labels, source)
        return _Evaluated(split, processor, prepared(split))

    dev = evaluated(splits.dev)
    test = dev if splits.test is splits.dev else evaluated(splits.test)
    train = None
    if splits.train:
        ids = tag_ids(splits.train.tags, labels)
        train = tagged_examples(prepared(splits.train), ids, ner.label_all_tokens)
    splits_read = {"dev": splits.dev, "test": splits.test}
    return FineTuningTask(
        make=lambda config, dtype: EntityTagger(
            BertTokenClassifier(config, num_labels=len(labels), dtype=dtype),
            processor.tokenizer,
            processor.settings,
        ),
        objective=tagging_objective(distillation),
        train=train,
        score=(lambda predict: dev.scores(dev.predicted(predict))) if dev else None,
        best="f1",
        show=(lambda predict, board: _show(dev, predict, board)) if dev else None,
        write_predictions=(lambda predict, folder: _write(test, predict, folder)) if test else None,
        labels=labels,
        data={name: split.sentences for name, split in splits_read.items() if split},
        counts=_span_counts(splits),
    )


def _span_counts(splits: SentenceSplits) -> dict[str, int]:
    """Returns the counts of spans that did not fit the words, under their names in results.json."""
    named = {"train": splits.train, "dev": splits.dev}
    if splits.test is not splits.dev:
        named["test"] = splits.test
    return {
        f"{name}_{kind}": count
        for name, split in named.items()
        if split
        for kind, count in split.counts.items()
    }


def _labels(train: TaggedSentences | None, start: Pretrained) -> tuple[list[str], object]:
    """Returns the model's labels, and the file or checkpoint that defines them."""
    checkpoint = start.checkpoint
    if train:
        return make_labels(train, checkpoint.labels), train.source
    if start.labels is None:
        raise InputError(
            f"{checkpoint.path}: has no label names; expected a tagger, --label_names or --do_train"
        )
    if is_of_other_task(checkpoint, "ner"):
        raise InputError(
            f"{checkpoint.path}: is a {checkpoint.architecture}; expected a tagger, or --do_train"
        )
    check_labels(start.labels, checkpoint.path)
    return start.labels, checkpoint.path


def _show(dev: _Evaluated, predict: Predict, board: Board) -> None:
    """Writes the sentences with wrong predictions to TensorBoard."""
    board.table(
        "wrong_predictions",
        ("where", "sentence", "missed", "wrong"),
        list(_wrong_sentences(dev, dev.predicted(predict)))[:SHOWN],
    )


def _wrong_sentences(
    dev: _Evaluated, predicted: Sequence[Sequence[str]]
) -> Iterator[tuple[str, str, str, str]]:
    for sentence, gold_tags, tags in zip(
        dev.tagged.sentences, dev.tagged.tags, predicted, strict=True
    ):
        gold, found = entities(gold_tags), entities(tags)
        if gold == found:
            continue
        missed, wrong = (
            ", ".join(
                f"{' '.join(sentence.words[first:last])} ({kind})"
                for kind, first, last in these
                if (kind, first, last) not in others
            )
            for these, others in ((gold, found), (found, gold))
        )
        yield (
            f"{Path(dev.tagged.source).name}:{sentence.line}",
            " ".join(sentence.words),
            missed,
            wrong,
        )


def _write(test: _Evaluated, predict: Predict, folder: Path) -> None:
    """Writes predictions.conll and, if the test file has gold tags, test_results.json."""
    predicted = test.predicted(predict)
    columns = [[sentence.words for sentence in test.tagged.sentences], test.tagged.tags, predicted]
    rows = zip(*(column for column in columns if column is not None), strict=True)
    write_conll(folder / "predictions.conll", list(rows))
    logging.info("Wrote %d sentences to %s", len(predicted), folder / "predictions.conll")
    if test.tagged.tags is not None:
        scores = test.scores(predicted)
        write_json(folder / "test_results.json", {"file": test.tagged.source} | scores)
        logging.info("%s: f1=%.4g", test.tagged.source, scores["f1"])
