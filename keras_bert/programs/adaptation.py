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

import hashlib
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import EVAL, TRAIN, HeldOut, Reading, split_documents
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.jobs import Progress
from data_tools.lines import OddInput
from data_tools.settings import Settings
from data_tools.vocabulary import count_words, extend_vocab
from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.vocabulary_change import follow_extension
from keras_bert.files import atomic_path, read_json, sha256, write_bytes, write_json
from keras_bert.models.memory import check_batch_fits
from keras_bert.options import from_values
from keras_bert.pretraining.run import Phase, pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.programs.options import recorded, values_of
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab
from keras_bert.training.backend import BACKEND, fastest_precision, make_strategy
from keras_bert.training.objective import check_batch_sizes
from keras_bert.training.run_folder import is_finished, log_finished, running
from keras_bert.training.settings import TrainingSettings

if TYPE_CHECKING:
    import tensorflow as tf

_RESULTS = "results.json"
# The other documents are needed for training.
_EVAL_SHARE = 0.05
# More held-out documents would not make the comparison of one corpus noticeably more precise, but
# each evaluation slower.
_MAX_EVAL_DOCUMENTS = 500
# The model is evaluated after each epoch, but at most MAX_EVALUATIONS times. It is saved then, and
# at least every MAX_CHECKPOINT_STEPS steps, so that little work is lost if the training is killed.
_MAX_EVALUATIONS = 10
_MAX_CHECKPOINT_STEPS = 1000


def adapt(
    flags: FlagValues,
    input_files: Sequence[str],
    reading: Reading,
    checkpoint: Checkpoint,
    output_dir: Path,
) -> dict[str, Any]:
    """Runs the adaptation that the flags describe, or resumes it; returns its results.

    Raises:
        InputError: the documents cannot be read or are too few, or a stage fails.
        EndedEarly: the training was stopped.
    """
    flags.mixed_precision = flags.mixed_precision or fastest_precision()
    with checkpoint.open_weights() as stored:
        has_head = stored.has("masked_lm/output_bias")
    if not has_head:
        logging.warning(
            "%s: has no masked-LM head; it is newly initialized, so the results before the "
            "training are those of an untrained head",
            checkpoint.path,
        )
    strategy = make_strategy("default", 0, 0.0, 1)
    settings = replace(
        from_values(PretrainingSettings, values_of(flags)), input_file="", export=False
    )
    training = from_values(TrainingSettings, values_of(flags))
    # Batches that do not fit are rejected before the first stage.
    length, rows = flags.max_seq_length, settings.eval_batch_size
    check_batch_sizes(strategy, training, rows)
    rows = training.train_batch_size // training.gradient_accumulation_steps
    flag = f"--train_batch_size={training.train_batch_size}"
    check_batch_fits(checkpoint.config, rows, length, flag)
    check_batch_fits(checkpoint.config, rows, length, f"evaluation with {rows} records per batch")
    record = {
        "program": "adapt",
        **recorded(flags, values_of(flags)),
        "backend": BACKEND,
        "input_sha256": _checksum(input_files),
    }
    if is_finished(output_dir, record, strategy):
        log_finished(output_dir)
        return read_json(output_dir / _RESULTS)
    with running(output_dir, record, strategy) as folder:
        results = _run_stages(
            flags, input_files, reading, checkpoint, settings, training, strategy, folder
        )
        results["new_masked_lm_head"] = not has_head
        write_json(folder / _RESULTS, results)
    return results


def _run_stages(
    flags: FlagValues,
    input_files: Sequence[str],
    reading: Reading,
    checkpoint: Checkpoint,
    settings: PretrainingSettings,
    training: TrainingSettings,
    strategy: "tf.distribute.Strategy",
    folder: Path,
) -> dict[str, Any]:
    text, vocab_file, tokenizer = (
        folder / "text",
        folder / "vocab.txt",
        checkpoint.tokenizer_settings,
    )

    # --- text ---
    if not text.exists():
        held_out = HeldOut(_EVAL_SHARE, _MAX_EVAL_DOCUMENTS)
        split_documents(input_files, reading, text, held_out)

    # --- vocabulary ---
    if not vocab_file.exists():
        _extend_vocab(flags, checkpoint, text / f"{TRAIN}.txt", vocab_file)
    vocab = load_vocab(vocab_file)
    num_new_words = len({*vocab} - {*checkpoint.vocab})

    # --- model with the new rows ---
    start = folder / "start"
    if num_new_words and not start.exists():
        convert(
            Path(flags.init_checkpoint),
            start,
            change_vocab=lambda old, rules: follow_extension(old, rules, vocab, str(vocab_file)),
        )

    # --- records ---
    data_settings = Settings(
        **{field.name: getattr(tokenizer, field.name) for field in fields(TokenizerSettings)},
        next_sentence="none",
        dynamic=True,
        max_seq_length=flags.max_seq_length,
        max_predictions_per_seq=math.ceil(Settings.masked_lm_prob * flags.max_seq_length),
        random_seed=flags.random_seed,
    )
    counts = {
        name: create_pretraining_data(  # `split_documents` has logged the odd input.
            str(text / f"{name}.txt"),
            str(folder / "records" / name),
            str(vocab_file),
            data_settings,
            log_odd_input=False,
        )["counts"]
        for name in (TRAIN, EVAL)
    }

    # --- evaluation and training ---
    epoch = counts[TRAIN]["examples"] / training.train_batch_size
    steps = training.num_train_steps or max(1, math.ceil(flags.num_train_epochs * epoch))
    evaluate_steps = math.ceil(max(epoch, steps / _MAX_EVALUATIONS))
    training = replace(
        training,
        num_train_steps=steps,
        evaluate_steps=evaluate_steps,
        save_checkpoints_steps=min(evaluate_steps, _MAX_CHECKPOINT_STEPS),
        keep_checkpoint_max=1,
    )
    settings = replace(
        settings,
        input_file=str(folder / "records" / TRAIN),
        eval_file=str(folder / "records" / EVAL),
        init_checkpoint=str(start if num_new_words else flags.init_checkpoint),
        num_warmup_steps=round(flags.warmup_proportion * steps),
    )

    def run(name: str, settings: PretrainingSettings) -> dict[str, Any]:
        record = asdict(settings) | asdict(training) | {"backend": BACKEND}
        record["init_checkpoint"] = flags.init_checkpoint
        for path in ("input_file", "eval_file"):  # The folder can be moved.
            del record[path]
        phase = Phase(settings, training, record)
        return pretrain([phase], strategy, folder / name, is_part=True)

    logging.info("Evaluating the initial model on the held-out documents")
    before = run("before", replace(settings, do_train=False))
    logging.info("Training for %d steps", steps)
    after = run("train", settings)
    with atomic_path(folder / "model") as partial:
        shutil.copytree(folder / "train" / "model", partial)

    # --- results ---
    results = {
        "train_documents": counts[TRAIN]["documents"],
        "eval_documents": counts[EVAL]["documents"],
        "new_words": num_new_words,
        "new_masked_lm_head": False,
        "step": after["step"],
        "unigram_masked_lm_loss": before["unigram_masked_lm_loss"],
    }
    stages = (("before", before), ("after", after))
    for metric in ("masked_lm_accuracy", "masked_lm_loss"):
        results |= {f"{metric}_{when}": scores[metric] for when, scores in stages}
    return results | {
        f"masked_lm_perplexity_{when}": math.exp(scores["masked_lm_loss"])
        for when, scores in stages
    }


def _extend_vocab(flags: FlagValues, checkpoint: Checkpoint, text: Path, vocab_file: Path) -> None:
    """Writes the vocabulary with the new words; without any, that of the checkpoint."""
    vocab, tokenizer = checkpoint.vocab, checkpoint.tokenizer_settings
    new_words: list[str] = []
    if flags.num_new_words:
        words = count_words([str(text)], Reading(), tokenizer, OddInput())
        vocab, new_words = extend_vocab(
            vocab, words, tokenizer, flags.min_frequency, flags.num_new_words
        )
    if new_words:
        shown = new_words[0], new_words[-1]
        logging.info("%d new words, from %r (most frequent) to %r", len(new_words), *shown)
    else:
        logging.info("No new words; the vocabulary stays that of %s", flags.init_checkpoint)
    write_bytes(vocab_file, "".join(f"{token}\n" for token in vocab).encode())


def _checksum(paths: Sequence[str]) -> str:
    """Returns a checksum of the contents of files."""
    digest = hashlib.sha256()
    with Progress("checking the input", sum(map(os.path.getsize, paths)), "B") as progress:
        for path in paths:
            digest.update(sha256(path, progress.add).encode())
    return digest.hexdigest()
