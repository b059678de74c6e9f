"""A tagger from start to end: column files in; entity scores, predictions.conll and model/ out.

sentences -> windows of pieces -> the fine-tuning core (tasks/fine_tuning) with this task's loss,
scores, TensorBoard table and prediction file
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_json
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.seeds import fine_tune_seeds
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.tasks.ner.conll import write_conll
from keras_bert.tasks.ner.data import (
    NerSettings,
    Splits,
    TaggedSentences,
    check_labels,
    check_types,
    make_labels,
    read_data,
    tag_ids,
)
from keras_bert.tasks.ner.objective import tagging_objective
from keras_bert.tasks.ner.scores import entity_scores
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, entities, iob2_tags, split_tag
from keras_bert.tasks.ner.windows import Windows, make_windows
from keras_bert.tasks.task import Task
from keras_bert.training.board import Board


@dataclass(frozen=True)
class _Settings:
    max_seq_length: int
    labels: tuple[str, ...]


class _TaggingTask(Task):
    """Holds the model until EntityTagger takes its place."""

    def make_processor(self) -> None:
        return None

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.settings.labels


@dataclass(frozen=True)
class _Windowed:
    """Sentences to score or to predict, cut into windows."""

    given: TaggedSentences
    windows: Windows
    labels: Sequence[str]

    def predicted(self, predict: Predict) -> list[list[str]]:
        """Returns what the likeliest tag of each word says, as IOB2 like the file's own tags.

        A tagger of another scheme is scored and written like one of IOB2 this way.
        """
        logits = predict(self.windows.examples)["logits"][self.windows.word_places]
        tags = iter(np.asarray(self.labels)[logits.argmax(axis=-1)].tolist())
        likeliest = [[next(tags) for _ in sentence.words] for sentence in self.given.sentences]
        return [iob2_tags(entities(each), len(each)) for each in likeliest]

    def scores(self, predicted: Sequence[Sequence[str]]) -> dict[str, float]:
        """Returns the entity scores, with every type that the model knows."""
        types = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        return entity_scores(zip(self.given.tags, predicted, strict=True), types)


def fine_tune_tagger(ner: NerSettings, run: FineTuningRun) -> dict[str, object]:
    """Fine-tunes a tagger once a seed, or goes on with it.

    Args:
        ner: which files, and how they are shown to the model.
        run: the run.

    Returns:
        The figures, as in results.json: precision, recall, f1 and accuracy of the development
        sentences, and the first three for each type of entity.

    Raises:
        InputError: anything about the files, the tags or the checkpoint that a user has to mend.
    """
    settings = run.settings
    start = open_pretrained(settings)
    splits = read_data(
        ner,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(ner, splits, start, settings.max_seq_length)
    return fine_tune_seeds(run, start, task)


def make_task(
    ner: NerSettings, splits: Splits, start: Pretrained, max_seq_length: int
) -> FineTuningTask:
    """Cuts everything into windows, and says how it is learnt, scored and written.

    Args:
        ner: how words are shown to the model.
        splits: the sentences.
        start: what the run starts from.
        max_seq_length: pieces of a window.

    Returns:
        The task.

    Raises:
        InputError: tags or labels that cannot be used.
    """
    labels, source = _labels(splits.train, start)
    tokenizer = start.tokenizer()

    def windows_of(some: TaggedSentences, **tags: object) -> Windows:
        return make_windows(
            some.sentences,
            tokenizer,
            max_seq_length,
            document_context=ner.document_context,
            **tags,
        )

    def windowed(some: TaggedSentences | None) -> _Windowed | None:
        if some is None:
            return None
        check_types(some, labels, source)
        return _Windowed(some, windows_of(some), labels)

    dev = windowed(splits.dev)
    test = dev if splits.test is splits.dev else windowed(splits.test)
    train = None
    if splits.train:
        train = windows_of(
            splits.train,
            tag_ids=tag_ids(splits.train.tags, labels),
            label_all_pieces=ner.label_all_pieces,
        ).examples
    read = {"dev": splits.dev, "test": splits.test}
    return FineTuningTask(
        make=lambda config, dtype: _TaggingTask(
            BertTokenClassifier(config, num_labels=len(labels), dtype=dtype),
            tokenizer,
            _Settings(max_seq_length, tuple(labels)),
        ),
        objective=tagging_objective(),
        train=train,
        score=(lambda predict: dev.scores(dev.predicted(predict))) if dev else None,
        best="f1",
        show=(lambda predict, board: _show(dev, predict, board)) if dev else None,
        write_predictions=(lambda predict, folder: _write(test, predict, folder)) if test else None,
        labels=labels,
        data={name: some.sentences for name, some in read.items() if some},
    )


def _labels(train: TaggedSentences | None, start: Pretrained) -> tuple[list[str], object]:
    """Returns the model's labels, and where they are from."""
    checkpoint = start.checkpoint
    if train:
        return make_labels(train, checkpoint.labels), train.source
    if start.labels is None:
        raise InputError(
            f"{checkpoint.path}: names no labels; expected a tagger, --label_names, or --do_train"
        )
    check_labels(start.labels, checkpoint.path)
    return start.labels, checkpoint.path


def _show(dev: _Windowed, predict: Predict, board: Board) -> None:
    """Shows sentences whose entities are not all found, or more than those."""
    board.table(
        "wrong_predictions",
        ("where", "sentence", "missed", "wrong"),
        list(_mistakes(dev, dev.predicted(predict)))[:SHOWN],
    )


def _mistakes(
    dev: _Windowed, predicted: Sequence[Sequence[str]]
) -> Iterator[tuple[str, str, str, str]]:
    for sentence, gold_tags, tags in zip(
        dev.given.sentences, dev.given.tags, predicted, strict=True
    ):
        gold, guess = entities(gold_tags), entities(tags)
        if gold == guess:
            continue
        missed, wrong = (
            ", ".join(
                f"{' '.join(sentence.words[first:last])} ({kind})"
                for kind, first, last in some
                if (kind, first, last) not in others
            )
            for some, others in ((gold, guess), (guess, gold))
        )
        yield (
            f"{Path(dev.given.source).name}:{sentence.line}",
            " ".join(sentence.words),
            missed,
            wrong,
        )


def _write(test: _Windowed, predict: Predict, folder: Path) -> None:
    """Writes predictions.conll, and test_results.json if the file has tags to score them by."""
    predicted = test.predicted(predict)
    columns = [[sentence.words for sentence in test.given.sentences], test.given.tags, predicted]
    rows = zip(*(column for column in columns if column is not None), strict=True)
    write_conll(folder / "predictions.conll", list(rows))
    logging.info("%s: %d sentences", folder / "predictions.conll", len(predicted))
    if test.given.tags is not None:
        scores = test.scores(predicted)
        write_json(folder / "test_results.json", {"file": test.given.source} | scores)
        logging.info("%s: f1=%.4g", test.given.source, scores["f1"])
