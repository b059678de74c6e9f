"""Continues the pre-training of a model on documents, in stages that can be resumed.

    text/            the documents for training (train.txt) and the held-out documents (eval.txt)
    vocab.txt        the vocabulary of the checkpoint with new words of train.txt
    start/           the model with this vocabulary; missing without new words
    records/         TFRecords for training (train) and of the held-out documents (eval)
    before/, train/  the runs that evaluate the initial model, and that train it
    model/           the trained model

The files of a stage appear when they are complete, or the stage resumes them itself. Therefore, a
stage whose files exist is skipped.
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from data_tools.corpus import EVAL, TRAIN, HeldOut, Reading, split_documents
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.lines import OddInput
from data_tools.settings import Settings
from data_tools.vocabulary import count_words, extend_vocab
from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.vocabulary_change import follow_extension
from keras_bert.files import atomic_path, write_bytes
from keras_bert.pretraining.run import Phase, pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab
from keras_bert.training.objective import TrainingSettings

if TYPE_CHECKING:
    import tensorflow as tf

# The model is evaluated after each epoch, but at most MAX_EVALUATIONS times. It is saved then, and
# at least every MAX_CHECKPOINT_STEPS steps, so that little work is lost if the training is killed.
_MAX_EVALUATIONS = 10
_MAX_CHECKPOINT_STEPS = 1000
_PATHS = ("input_file", "eval_file")
# {metric: its value for the results of a run}
_METRICS = {
    "accuracy": lambda results: results["masked_lm_accuracy"],
    "loss": lambda results: results["masked_lm_loss"],
    "perplexity": lambda results: math.exp(results["masked_lm_loss"]),
}


@dataclass(frozen=True)
class Adaptation:
    """The settings of an adaptation, most of them named like the flags of `keras-bert adapt`.

    Attributes:
        input_files: the files with the documents.
        held_out: the number of held-out documents.
        checkpoint: the open checkpoint, `settings.init_checkpoint`; it has a vocabulary.
        settings: the settings of the training, without records.
        training: the settings of the steps; `num_train_steps` 0 means `num_train_epochs`.
        backend: the Keras backend.
    """

    input_files: list[str]
    reading: Reading
    held_out: HeldOut
    checkpoint: Checkpoint
    num_new_words: int
    min_frequency: int
    num_train_epochs: float
    warmup_proportion: float
    settings: PretrainingSettings
    training: TrainingSettings
    backend: str


def adapt(
    adaptation: Adaptation, strategy: "tf.distribute.Strategy", folder: Path
) -> dict[str, Any]:
    """Runs the stages that are not finished; returns the content of results.json.

    Raises:
        InputError: the documents cannot be read or are too few, or a stage fails.
        EndedEarly: the training was stopped.
    """
    text, vocab_file = folder / "text", folder / "vocab.txt"
    if not text.exists():
        split_documents(adaptation.input_files, adaptation.reading, text, adaptation.held_out)
    if not vocab_file.exists():
        _extend_vocab(adaptation, text / f"{TRAIN}.txt", vocab_file)
    vocab = load_vocab(vocab_file)
    new_words = len({*vocab} - {*adaptation.checkpoint.vocab})
    start = _add_rows(adaptation, vocab, folder / "start") if new_words else None
    manifests = _write_records(adaptation, text, vocab_file, folder / "records")
    training = _training(adaptation, manifests[TRAIN]["counts"]["examples"])
    settings = replace(
        adaptation.settings,
        input_file=str(folder / "records" / TRAIN),
        eval_file=str(folder / "records" / EVAL),
        init_checkpoint=str(start or adaptation.settings.init_checkpoint),
        num_warmup_steps=round(adaptation.warmup_proportion * training.num_train_steps),
    )
    untrained = replace(settings, do_train=False)
    logging.info("Evaluating the initial model on the held-out documents")
    before = _pretrain(adaptation, untrained, training, strategy, folder / "before")
    logging.info("Training for %d steps", training.num_train_steps)
    after = _pretrain(adaptation, settings, training, strategy, folder / "train")
    with atomic_path(folder / "model") as partial:
        shutil.copytree(folder / "train" / "model", partial)
    documents = {name: manifest["counts"]["documents"] for name, manifest in manifests.items()}
    return {
        "train_documents": documents[TRAIN],
        "eval_documents": documents[EVAL],
        "new_words": new_words,
        "new_masked_lm_head": not has_masked_lm_head(adaptation.checkpoint),
        "step": after["step"],
        "unigram_masked_lm_loss": before["unigram_masked_lm_loss"],
        **_compare(before, after),
    }


def has_masked_lm_head(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint has the weights of a masked-LM head."""
    with checkpoint.open_weights() as stored:
        return stored.has("masked_lm/output_bias")


def _extend_vocab(adaptation: Adaptation, text: Path, vocab_file: Path) -> None:
    """Writes the vocabulary with the new words; without any, that of the checkpoint."""
    tokenizer, vocab = adaptation.checkpoint.tokenizer_settings, adaptation.checkpoint.vocab
    new_words: list[str] = []
    if adaptation.num_new_words:
        words = count_words([str(text)], Reading(), tokenizer, OddInput())
        vocab, new_words = extend_vocab(
            vocab, words, tokenizer, adaptation.min_frequency, adaptation.num_new_words
        )
    if new_words:
        logging.info(
            "%d new words, from %r (most frequent) to %r",
            len(new_words),
            new_words[0],
            new_words[-1],
        )
    else:
        logging.info(
            "No new words; the vocabulary stays that of %s", adaptation.settings.init_checkpoint
        )
    write_bytes(vocab_file, "".join(f"{token}\n" for token in vocab).encode())


def _add_rows(adaptation: Adaptation, vocab: list[str], start: Path) -> Path:
    """Writes the model with rows for the new words; returns its folder."""
    if not start.exists():
        convert(
            Path(adaptation.settings.init_checkpoint),
            start,
            change_vocab=lambda old, tokenizer: follow_extension(
                old, tokenizer, vocab, str(start.with_name("vocab.txt"))
            ),
        )
    return start


def _write_records(
    adaptation: Adaptation, text: Path, vocab_file: Path, records: Path
) -> dict[str, dict[str, Any]]:
    """Writes the records for training and evaluation, or resumes this; returns the manifests."""
    tokenizer = adaptation.checkpoint.tokenizer_settings
    length = adaptation.settings.max_seq_length
    settings = Settings(
        **{field.name: getattr(tokenizer, field.name) for field in fields(TokenizerSettings)},
        next_sentence="none",
        dynamic=True,
        max_seq_length=length,
        max_predictions_per_seq=math.ceil(Settings.masked_lm_prob * length),
        random_seed=adaptation.settings.random_seed,
    )
    return {
        name: create_pretraining_data(  # `split_documents` has logged the odd input.
            str(text / f"{name}.txt"),
            str(records / name),
            str(vocab_file),
            settings,
            log_odd_input=False,
        )
        for name in (TRAIN, EVAL)
    }


def _training(adaptation: Adaptation, num_examples: int) -> TrainingSettings:
    """Returns the settings of the steps for a number of training records."""
    training = adaptation.training
    epoch = num_examples / training.train_batch_size
    steps = training.num_train_steps or max(1, math.ceil(adaptation.num_train_epochs * epoch))
    evaluate_every = math.ceil(max(epoch, steps / _MAX_EVALUATIONS))
    return replace(
        training,
        num_train_steps=steps,
        evaluate_steps=evaluate_every,
        save_checkpoints_steps=min(evaluate_every, _MAX_CHECKPOINT_STEPS),
        keep_checkpoint_max=1,
    )


def _pretrain(
    adaptation: Adaptation,
    settings: PretrainingSettings,
    training: TrainingSettings,
    strategy: "tf.distribute.Strategy",
    folder: Path,
) -> dict[str, float]:
    """Runs a stage; its record has no paths in the folder, which can be moved."""
    record = asdict(settings) | asdict(training) | {"backend": adaptation.backend}
    record["init_checkpoint"] = adaptation.settings.init_checkpoint
    record = {name: value for name, value in record.items() if name not in _PATHS}
    return pretrain([Phase(settings, training, record)], strategy, folder, is_part=True)


def _compare(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics before and after the training, for the same held-out records."""
    compared = {}
    for name, change in _METRICS.items():
        for when, results in (("before", before), ("after", after)):
            compared[f"masked_lm_{name}_{when}"] = change(results)
    return compared
