r"""Continues the pre-training of a BERT on your own documents.

    keras-bert adapt --input_file=documents --init_checkpoint=bert --output_dir=adapted

    keras-bert adapt --input_file='text/*.txt' --input_format=sentences --init_checkpoint=bert \
        --output_dir=adapted

The documents are the text, HTML, Markdown, Word, PDF, Parquet, Arrow and JSON-lines files in a
folder. With --input_format=sentences, they are text files with one sentence per line.
Some of them are held out. Frequent words of the others are added to the vocabulary of the
checkpoint, and the masked-LM training continues on their text. The results compare the masked-LM
loss on the held-out documents before and after the training. The output folder can be the
--init_checkpoint of fine-tuning.

To resume an interrupted adaptation, run the same command again.
"""

import hashlib
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from absl import logging
from absl.flags import FlagValues

from data_tools.build_vocab import count_words, extend_vocab
from data_tools.corpus import EVAL, TRAIN, Reading, find_input_files, split_documents
from data_tools.jobs import Progress
from data_tools.lines import OddInput
from data_tools.settings import Settings
from keras_bert.errors import InputError
from keras_bert.files import (
    atomic_path,
    check_not_input_folder,
    read_json,
    sha256,
    write_bytes,
    write_json,
)
from keras_bert.options import (
    ANY_MODEL,
    MAX_BATCH_SIZE,
    MAX_REPEATS,
    MAX_SEED,
    MAX_SEQ_LENGTH,
    advanced,
    from_values,
    option,
    same_as,
)
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.programs import runs
from keras_bert.programs.options import recorded, values_of
from keras_bert.programs.program import Program, call_with, reject_arguments
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.settings import FitSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab
from keras_bert.training.settings import Precision, TrainingSettings

if TYPE_CHECKING:
    from keras_bert.checkpoints.checkpoint import Checkpoint

_DEFAULTS = FitSettings.of({}, "fill_mask")
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


@dataclass(frozen=True)
class AdaptOptions:
    """The options of the program, with defaults for some megabytes of text."""

    GROUP: ClassVar[str] = "training"
    input_file: str = option(
        "", "Documents: comma-separated folders, files or globs.", required=True, may_change=True
    )
    init_checkpoint: str = option(
        "",
        f"Model to start from, with a vocabulary: {ANY_MODEL}.",
        required=True,
    )
    output_dir: str = option(
        "", "Folder for all files of the adaptation.", required=True, may_change=True
    )
    num_new_words: int = option(
        1000,
        "Maximum number of new words in the vocabulary; 0: none. Default: 1000, about the number "
        "of [unusedN] tokens of the published BERT models, which need no additional rows.",
        min=0,
        group="data",
    )
    min_frequency: int = advanced(
        20,
        "Minimum number of occurrences of a new word. Default: 20, because the row of a rarer word "
        "would stay close to its initial value, the mean of the rows of its subwords.",
        min=1,
    )
    max_seq_length: int = option(
        128,
        "Number of tokens per record. Default: 128, because longer records cost more time per "
        "token; fine-tuning may still use all positions of the model.",
        min=5,
        max=MAX_SEQ_LENGTH,
        group="data",
    )
    train_batch_size: int = option(
        _DEFAULTS.batch_size,
        "Number of records per training step. Default: 32, because a few megabytes of text are "
        "some thousand records, which larger batches would divide into too few steps.",
        min=1,
        max=MAX_BATCH_SIZE,
    )
    num_train_epochs: float = option(
        float(_DEFAULTS.epochs),
        "Number of passes over the training records. Default: 10, because each pass masks other "
        "tokens, so a small corpus can be read several times.",
        min=0,
        max=MAX_REPEATS,
    )
    num_train_steps: int = advanced(
        0,
        "Number of training steps. Default: 0, computed from --num_train_epochs, so that it "
        "follows the size of the corpus.",
        min=0,
    )
    learning_rate: float = option(
        _DEFAULTS.learning_rate,
        "Peak learning rate. Default: 5e-5, half of that of pre-training, because the weights are "
        "already trained.",
        min=0,
    )
    warmup_proportion: float = advanced(
        _DEFAULTS.warmup_proportion,
        "Fraction of the training steps in which the learning rate increases to its peak. Default: "
        "10%, because the optimizer starts without moments and a run of a few thousand steps needs "
        "a larger share than the 1% of pre-training.",
        min=0,
        max=1,
    )
    random_seed: int = advanced(
        _DEFAULTS.seed, "Seed for new weights, masks, data order and dropout.", min=0, max=MAX_SEED
    )
    jit_compile: bool = same_as(TrainingSettings, "jit_compile")
    gradient_checkpointing: bool = same_as(TrainingSettings, "gradient_checkpointing")
    gradient_accumulation_steps: int = same_as(TrainingSettings, "gradient_accumulation_steps")
    report_to: Sequence[str] = same_as(TrainingSettings, "report_to")


def adapt(
    folder: str | os.PathLike | Sequence[str | os.PathLike],
    checkpoint: str | os.PathLike,
    *,
    output_dir: str | os.PathLike,
    **settings: Any,
) -> dict[str, Any]:
    """Continues the pre-training of a BERT on documents, as `keras-bert adapt` does.

    Example:
        keras_bert.adapt("documents", "bert", output_dir="adapted")
        classifier = keras_bert.TextClassifier.from_pretrained("adapted", labels=["no", "yes"])

    Args:
        folder: folders, files or globs of documents.
        checkpoint: the model to start from: any path or name that `from_pretrained` opens.
        output_dir: the folder of all files of the adaptation.
        **settings: flags of the program, such as `num_train_epochs` and `input_format`.

    Returns:
        {name: value} as in results.json, such as "masked_lm_loss_before" and
            "masked_lm_loss_after" for the documents that were held out.
    """
    names = {"input_file": "folder", "init_checkpoint": "checkpoint"}
    arguments = {"folder": folder, "checkpoint": checkpoint, "output_dir": output_dir, **settings}
    return call_with(PROGRAM, names, **arguments)


def main(flags: FlagValues, arguments: Sequence[str]) -> dict[str, Any]:
    """Adapts the model, and prints the comparison of the held-out loss before and after."""
    reject_arguments(arguments)
    input_files = find_input_files(flags.input_file, flags.input_format)
    _check_folders(flags, input_files)
    reading = from_values(Reading, values_of(flags))
    runs.use_compilation_cache()
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    output_dir = Path(flags.output_dir)
    results = run_stages(flags, input_files, reading, _open_checkpoint(flags), output_dir)
    runs.finish(results, output_dir, export=False)
    logging.info(
        "Next, fine-tune the model, for example: keras-bert classify --train_file=TRAIN.csv "
        "--init_checkpoint=%s --output_dir=CLASSIFIER",
        output_dir,
    )
    return results


def _check_folders(flags: FlagValues, input_files: Sequence[str]) -> None:
    """Rejects an output directory with other files, or one that overlaps with what is read."""
    where = f"--output_dir={flags.output_dir}"
    runs.check_output_dir(flags.output_dir, flags.init_checkpoint)
    entries = [entry.strip() for entry in flags.input_file.split(",")]
    check_not_input_folder(flags.output_dir, entries)
    output_dir = Path(flags.output_dir).resolve()
    for folder in filter(os.path.isdir, [*entries, flags.init_checkpoint]):
        if Path(folder).resolve() in output_dir.parents:
            raise InputError(f"{where}: is inside {folder}, which is read; expected another folder")
    for path in input_files:
        if output_dir in Path(path).resolve().parents:
            raise InputError(
                f"{where}: contains the input {path}; expected another folder, so that output and "
                "input stay apart"
            )
    names = sorted(os.listdir(output_dir)) if output_dir.exists() else []
    names = [name for name in names if not name.startswith(".")]
    if names and "run.json" not in names:
        raise InputError(
            f"{where}: contains other files, such as {names[0]}; expected a new folder"
        )


def _open_checkpoint(flags: FlagValues) -> "Checkpoint":
    from keras_bert.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(flags.init_checkpoint)
    checkpoint.require_vocab("expected a checkpoint with a vocabulary")
    checkpoint.check_bidirectional("adapt")
    positions = checkpoint.config.max_position_embeddings
    if flags.max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={flags.max_seq_length}: the model has only {positions} positions; "
            f"expected at most {positions}"
        )
    return checkpoint


# --- the stages ---


def run_stages(
    flags: FlagValues,
    input_files: Sequence[str],
    reading: Reading,
    checkpoint: "Checkpoint",
    output_dir: Path,
) -> dict[str, Any]:
    """Runs the adaptation that the flags describe, or resumes it; returns its results.

    The stages and their files in the output directory are:

        text/            the documents for training (train.txt) and the held-out ones (eval.txt)
        vocab.txt        the vocabulary of the checkpoint with new words of train.txt
        start/           the model with this vocabulary; missing without new words
        records/         TFRecords for training (train) and of the held-out documents (eval)
        before/, train/  the runs that evaluate the initial model, and that train it
        model/           the trained model

    The files of a stage appear when they are complete, or the stage resumes them itself. Therefore,
    a stage whose files exist is skipped.
    """
    from data_tools.create_pretraining_data import create_pretraining_data
    from keras_bert.checkpoints.convert import convert, follow_extension
    from keras_bert.models.memory import check_batch_fits
    from keras_bert.pretraining.run import pretrain
    from keras_bert.training.backend import BACKEND, fastest_precision, make_strategy
    from keras_bert.training.objective import check_batch_sizes, check_train_batch_fits
    from keras_bert.training.run_folder import is_finished, log_finished, running

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
    check_train_batch_fits(training, 1, checkpoint.config, length)
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
        text, vocab_file = folder / "text", folder / "vocab.txt"
        tokenizer = checkpoint.tokenizer_settings

        # --- text ---
        if not text.exists():
            split_documents(input_files, reading, text, _EVAL_SHARE, _MAX_EVAL_DOCUMENTS)

        # --- vocabulary ---
        if not vocab_file.exists():
            _extend_vocab(flags, checkpoint, text / f"{TRAIN}.txt", vocab_file)
        vocab = load_vocab(vocab_file)
        num_new_words = len({*vocab} - {*checkpoint.vocab})

        # --- model with the new rows ---
        start = folder / "start"
        if num_new_words and not start.exists():
            convert(
                checkpoint.path,
                start,
                change_vocab=lambda old, rules: follow_extension(
                    old, rules, vocab, str(vocab_file)
                ),
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
            # The folder can be moved.
            for changing in ("input_file", "eval_file", "report_to"):
                del record[changing]
            phase = Phase(settings, training, record)
            return pretrain([phase], strategy, folder / name, is_part=True)

        logging.info("Evaluating the initial model on the held-out documents")
        before = run("before", replace(settings, do_train=False))
        after = run("train", settings)
        with atomic_path(folder / "model") as partial:
            shutil.copytree(folder / "train" / "model", partial)

        # --- results ---
        results = {
            "train_documents": counts[TRAIN]["documents"],
            "eval_documents": counts[EVAL]["documents"],
            "new_words": num_new_words,
            "new_masked_lm_head": not has_head,
            "step": after["step"],
            "unigram_masked_lm_loss": before["unigram_masked_lm_loss"],
        }
        stages = (("before", before), ("after", after))
        for metric in ("masked_lm_accuracy", "masked_lm_loss"):
            results |= {f"{metric}_{when}": scores[metric] for when, scores in stages}
        results |= {
            f"masked_lm_perplexity_{when}": math.exp(scores["masked_lm_loss"])
            for when, scores in stages
        }
        write_json(folder / _RESULTS, results)
    return results


def _extend_vocab(
    flags: FlagValues, checkpoint: "Checkpoint", text: Path, vocab_file: Path
) -> None:
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


PROGRAM = Program(
    "adapt",
    __doc__,
    (AdaptOptions, Reading, Precision),
    main,
    resumable=True,
    defaults={"mixed_precision": None, "input_format": "mixed"},
)
