"""A tagger from start to end: column files in; entity scores, predictions.conll and model/ out.

sentences -> windows of pieces -> the fine-tuning core (tasks/fine_tuning) with this task's loss,
scores, TensorBoard table and prediction file
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import sha256, write_json
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.run import FineTuningTask
from keras_bert.tasks.fine_tuning.seeds import fine_tune_seeds
from keras_bert.tasks.fine_tuning.start import FineTuningSettings, Start, find_start
from keras_bert.tasks.ner.conll import write_conll
from keras_bert.tasks.ner.data import (
    NerSettings,
    TaggedFile,
    check_labels,
    check_types,
    make_labels,
    read_tagged,
    tag_ids,
)
from keras_bert.tasks.ner.schemes import OUTSIDE, entities, iob2_tags, split_tag
from keras_bert.tasks.ner.scores import entity_scores
from keras_bert.tasks.ner.task import ner_task
from keras_bert.tasks.ner.windows import Windows, make_windows
from keras_bert.training.board import Board
from keras_bert.training.loop import TrainingSettings

SHOWN = 100


@dataclass(frozen=True)
class _Windowed:
    """A file to score or to predict, cut into windows."""

    file: TaggedFile
    windows: Windows
    labels: Sequence[str]

    def predicted(self, predict: Predict) -> list[list[str]]:
        """Returns what the likeliest tag of each word says, as IOB2 like the file's own tags.

        A tagger of another scheme is scored and written like one of IOB2 this way.
        """
        logits = predict(self.windows.examples)["logits"][self.windows.word_places]
        tags = iter(np.asarray(self.labels)[logits.argmax(axis=-1)].tolist())
        likeliest = [[next(tags) for _ in sentence.words] for sentence in self.file.sentences]
        return [iob2_tags(entities(each), len(each)) for each in likeliest]

    def scores(self, predicted: Sequence[Sequence[str]]) -> dict[str, float]:
        """Returns the entity scores, with every type that the model knows."""
        types = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        return entity_scores(zip(self.file.tags, predicted, strict=True), types)


def fine_tune_tagger(
    ner: NerSettings,
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    seeds: Sequence[int],
    record: Mapping[str, object],
) -> dict[str, object]:
    """Fine-tunes a tagger once a seed, or goes on with it.

    Args:
        ner: which files, and how they are shown to the model.
        settings: what the run is made of.
        training: how it trains.
        strategy: the devices.
        output_dir: the run's folder.
        seeds: at least one.
        record: what goes into run.json and must not change between a start and its continuation.

    Returns:
        The figures, as in results.json: precision, recall, f1 and accuracy of `eval_file`, and the
        first three for each type of entity.

    Raises:
        InputError: anything about the files, the tags or the checkpoint that a user has to mend.
    """
    start = find_start(settings)
    task = make_task(ner, settings, start)
    read = {
        "eval": ner.eval_file if settings.do_eval else "",
        "test": (ner.test_file or ner.eval_file) if settings.do_predict else "",
    }
    record = {**record, **{f"{name}_sha256": sha256(path) for name, path in read.items() if path}}
    return fine_tune_seeds(settings, training, strategy, output_dir, record, start, task, seeds)


def make_task(ner: NerSettings, settings: FineTuningSettings, start: Start) -> FineTuningTask:
    """Reads and cuts everything, and says how it is learnt, scored and written.

    Args:
        ner: which files, and how they are shown to the model.
        settings: what the run is made of.
        start: what it starts from.

    Returns:
        The task.

    Raises:
        InputError: files, tags or labels that cannot be used.
    """
    train, dev, test = _read(ner, settings)
    checkpoint = start.checkpoint
    if train:
        labels, source = make_labels(train, checkpoint.labels), train.path
    else:
        labels, source = checkpoint.labels, checkpoint.path
        if labels is None:
            raise InputError(f"{source}: names no labels; expected a tagger, or --do_train")
        check_labels(labels, source)
    tokenizer = start.tokenizer()

    def windowed(file: TaggedFile | None) -> _Windowed | None:
        if file is None:
            return None
        check_types(file, labels, source)
        windows = make_windows(
            file.sentences,
            tokenizer,
            settings.max_seq_length,
            document_context=ner.document_context,
        )
        return _Windowed(file, windows, labels)

    dev = windowed(dev)
    test = windowed(test)
    examples = None
    if train:
        examples = make_windows(
            train.sentences,
            tokenizer,
            settings.max_seq_length,
            tag_ids(train.tags, labels),
            document_context=ner.document_context,
            label_all_pieces=ner.label_all_pieces,
        ).examples
    return FineTuningTask(
        make_model=lambda config, dtype: BertTokenClassifier(
            config, num_labels=len(labels), dtype=dtype
        ),
        sums=ner_task(),
        train=examples,
        score=(lambda predict: dev.scores(dev.predicted(predict))) if dev else None,
        best="f1",
        show=(lambda predict, board: _show(dev, predict, board)) if dev else None,
        write_predictions=(lambda predict, folder: _write(test, predict, folder)) if test else None,
        labels=labels,
    )


def _read(
    ner: NerSettings, settings: FineTuningSettings
) -> tuple[TaggedFile | None, TaggedFile | None, TaggedFile | None]:
    """Reads the files that the run needs: to train on, to score, to predict."""
    if settings.do_train and not ner.train_file:
        raise InputError("--train_file is missing; expected a CoNLL column file, or --nodo_train")
    if settings.do_eval and not ner.eval_file and not settings.do_train:
        raise InputError("--eval_file is missing; expected a CoNLL column file, or --nodo_eval")
    predicted = ner.test_file or ner.eval_file
    if settings.do_predict and not predicted and not settings.do_train:
        raise InputError("--test_file is missing; expected a CoNLL column file, or --nodo_predict")
    train = read_tagged(ner.train_file, ner) if settings.do_train else None
    dev = read_tagged(ner.eval_file, ner) if settings.do_eval and ner.eval_file else None
    if not settings.do_predict or not predicted:
        return train, dev, None
    if dev and predicted == ner.eval_file:
        return train, dev, dev
    return train, dev, read_tagged(predicted, ner, tags_needed=False)


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
    for sentence, gold_tags, tags in zip(dev.file.sentences, dev.file.tags, predicted, strict=True):
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
        yield f"{dev.file.path.name}:{sentence.line}", " ".join(sentence.words), missed, wrong


def _write(test: _Windowed, predict: Predict, folder: Path) -> None:
    """Writes predictions.conll, and test_results.json if the file has tags to score them by."""
    predicted = test.predicted(predict)
    columns = [[sentence.words for sentence in test.file.sentences], test.file.tags, predicted]
    rows = zip(*(column for column in columns if column is not None), strict=True)
    write_conll(folder / "predictions.conll", list(rows))
    logging.info("%s: %d sentences", folder / "predictions.conll", len(predicted))
    if test.file.tags is not None:
        scores = test.scores(predicted)
        write_json(folder / "test_results.json", {"file": str(test.file.path)} | scores)
        logging.info("%s: f1=%.4g", test.file.path, scores["f1"])
