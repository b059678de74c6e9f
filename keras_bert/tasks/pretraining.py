"""Pre-training from start to end: records in; checkpoints, scores and a model directory out.

find records -> config, vocabulary -> open the run -> model (fresh, or from a checkpoint)
-> train -> evaluate -> model/ and results.json
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.model_directory import (
    ModelDirectory,
    open_model_directory,
    save_model_directory,
)
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.lamb import Lamb
from keras_bert.optimization.schedules import LinearWarmupDecay
from keras_bert.tasks.pretraining_data import evaluation_batches, explained, training_batches
from keras_bert.tasks.pretraining_files import PretrainingData, find_records
from keras_bert.tasks.pretraining_task import pretraining_task, unigram_baseline
from keras_bert.training.evaluate import make_evaluate
from keras_bert.training.loop import TrainingSettings, check_batch_sizes, train
from keras_bert.training.run_directory import open_run, read_json, write_json
from keras_bert.vocabulary import load_vocab


@dataclass(frozen=True)
class PretrainingSettings:
    """What a pre-training run is made of; each value can change its outcome.

    Attributes:
        input_file: training records: folders, files or globs, comma-separated.
        eval_file: held-out records, likewise; empty for the training records.
        bert_config: a JSON file or a bundled config's name; empty with `init_checkpoint`.
        vocab_file: the vocabulary; empty for the one beside the records.
        do_lower_case: whether records and vocabulary are lower-cased; None takes what the records
            or the starting point say, and True where neither does.
        init_checkpoint: a model directory to start from, or empty.
        optimizer: `adamw` or `lamb`.
        learning_rate: its peak, reached after the warm-up.
        num_warmup_steps: steps of linear warm-up.
        random_seed: decides fresh weights, data order and dropout masks.
        do_train: whether to train; else `init_checkpoint` is evaluated as it is.
        do_eval: whether to evaluate at each checkpoint and at the end.
        eval_batch_size: examples a batch of the evaluation.
        max_eval_steps: batches of an evaluation; 0 takes all.
        mixed_precision: `float32` or `bfloat16`.
        max_seq_length: what the records must have; 0 takes what they have.
        max_predictions_per_seq: likewise.
    """

    input_file: str
    eval_file: str = ""
    bert_config: str = ""
    vocab_file: str = ""
    do_lower_case: bool | None = None
    init_checkpoint: str = ""
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    num_warmup_steps: int = 10_000
    random_seed: int = 12345
    do_train: bool = True
    do_eval: bool = True
    eval_batch_size: int = 32
    max_eval_steps: int = 0
    mixed_precision: str = "float32"
    max_seq_length: int = 0
    max_predictions_per_seq: int = 0


def pretrain(
    settings: PretrainingSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    record: Mapping[str, object],
) -> dict[str, float]:
    """Pre-trains a BERT, or goes on with it, and saves what it became.

    Args:
        settings: what the run is made of.
        training: how long and how it trains.
        strategy: the devices.
        output_dir: the run's folder (README, "What a run leaves behind").
        record: what goes into run.json and must not change between a start and its continuation.

    Returns:
        The finished steps and the final figures, as in results.json.

    Raises:
        InputError: anything about the records, the config, the vocabulary, the checkpoint or the
            folder that a user has to mend.
    """
    if settings.mixed_precision == "float16":
        raise InputError(
            "--mixed_precision=float16 is not built yet (it needs a loss scale); expected float32 "
            "or bfloat16"
        )
    if not (settings.do_train or settings.init_checkpoint):
        raise InputError("--do_train=false needs an --init_checkpoint to evaluate")
    data = find_records(settings.input_file)
    held_out = find_records(settings.eval_file, "eval_file") if settings.eval_file else data
    start = _start(settings.init_checkpoint)
    vocab, vocab_file = _vocab(settings, data, held_out, start)
    do_lower_case = _do_lower_case(settings, data, held_out, start)
    config = _config(settings, start, vocab, vocab_file)
    for records in (data, held_out):
        _check_shape(records, settings, config)
    check_batch_sizes(strategy, training, settings.eval_batch_size)
    record = {
        **record,
        "config": config.to_dict(),
        "data_fingerprint": data.fingerprint,
        "eval_fingerprint": held_out.fingerprint,
    }
    if open_run(output_dir, record):
        logging.info("%s is finished; nothing to do", output_dir)
        return read_json(output_dir / "results.json")

    keras.utils.set_random_seed(settings.random_seed)
    with strategy.scope():
        policy = "mixed_bfloat16" if settings.mixed_precision == "bfloat16" else "float32"
        model = BertPretrainer(config, dtype=policy)
        if start:
            logging.info("%s", start.load_into(model))
        schedule = LinearWarmupDecay(
            settings.learning_rate, training.num_train_steps, settings.num_warmup_steps
        )
        optimizer = {"adamw": AdamWeightDecay, "lamb": Lamb}[settings.optimizer](schedule)
        optimizer.build(model.trainable_variables)
    task = pretraining_task()
    score = make_evaluate(strategy, model, task, jit_compile=training.jit_compile)

    def evaluate() -> dict[str, float]:
        batches = evaluation_batches(
            held_out, settings.eval_batch_size, config.vocab_size, settings.max_eval_steps
        )
        with explained(held_out, config.vocab_size):
            return score(batches)

    def batches_from(step: int) -> tf.data.Dataset:
        return training_batches(
            data, training.train_batch_size, config.vocab_size, settings.random_seed, step
        )

    results = {"step": training.num_train_steps if settings.do_train else 0}
    if settings.do_train:
        with explained(data, config.vocab_size):
            train(
                strategy,
                model,
                optimizer,
                task,
                batches_from,
                training,
                output_dir,
                evaluate if settings.do_eval and settings.eval_file else None,
            )
    if settings.do_eval:
        if not settings.eval_file:
            logging.info("no --eval_file: evaluating on the training records")
        results |= evaluate() | unigram_baseline(data, held_out, config.vocab_size)
    if settings.do_train:
        save_model_directory(output_dir / "model", model, config, vocab, do_lower_case)
    write_json(output_dir / "results.json", results)
    return results


def _check_shape(data: PretrainingData, settings: PretrainingSettings, config: BertConfig) -> None:
    for name in ("max_seq_length", "max_predictions_per_seq"):
        asked, found = getattr(settings, name), getattr(data, name)
        if asked not in (0, found):
            raise InputError(f"--{name}={asked}, but {data.files[0]} was made with {name} {found}")
    if data.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"{data.files[0]} has max_seq_length {data.max_seq_length}, but the config allows "
            f"max_position_embeddings {config.max_position_embeddings}"
        )


def _do_lower_case(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    start: ModelDirectory | None,
) -> bool:
    """The one casing that the flag, the records and the starting point agree on."""
    said = {} if settings.do_lower_case is None else {"--do_lower_case": settings.do_lower_case}
    for records in (data, held_out):
        if records.manifest:
            said[records.files[0]] = records.manifest["settings"]["do_lower_case"]
    if start and start.vocab:
        said[str(start.path)] = start.do_lower_case
    if len(set(said.values())) > 1:
        words = ", ".join(f"{name} is {value}" for name, value in said.items())
        raise InputError(f"do_lower_case differs: {words}; records and model must share one")
    return next(iter(said.values()), True)


def _start(init_checkpoint: str) -> ModelDirectory | None:
    """Opens a model directory, or the one inside an earlier run's folder; says which."""
    if not init_checkpoint:
        return None
    path = Path(init_checkpoint)
    if (path / "run.json").exists():
        path = path / "model"
    start = open_model_directory(path)
    logging.info("starting from the model directory %s", path)
    return start


def _vocab(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    start: ModelDirectory | None,
) -> tuple[list[str] | None, Path | None]:
    """The one vocabulary that flags, records and the starting point agree on."""
    files = [Path(settings.vocab_file)] if settings.vocab_file else []
    files += [found.vocab_file for found in (data, held_out) if found.vocab_file]
    vocabs = [(load_vocab(path), path) for path in dict.fromkeys(files)]
    if start and start.vocab:
        vocabs.append((start.vocab, start.path / "vocab.txt"))
    for vocab, path in vocabs[1:]:
        if vocab != vocabs[0][0]:
            raise InputError(
                f"{path} ({len(vocab)} pieces) is another vocabulary than {vocabs[0][1]} "
                f"({len(vocabs[0][0])} pieces); records and model must share one"
            )
    return vocabs[0] if vocabs else (None, None)


def _config(
    settings: PretrainingSettings,
    start: ModelDirectory | None,
    vocab: list[str] | None,
    vocab_file: Path | None,
) -> BertConfig:
    if settings.bert_config:
        config = BertConfig.from_json(settings.bert_config)
        bundled = not Path(settings.bert_config).exists()
        if bundled and vocab and not start:
            # A bundled config fixes the encoder's size; the vocabulary is the user's own.
            config = replace(config, vocab_size=len(vocab))
    elif start:
        config = start.config
    else:
        raise InputError(
            "--bert_config is missing: a JSON file, or tiny, mini, small, medium, base or large"
        )
    if start and config != start.config:
        raise InputError(
            f"--bert_config={settings.bert_config} differs from the config of "
            f"--init_checkpoint={settings.init_checkpoint}; leave it out to take the checkpoint's"
        )
    if vocab:
        config.check_vocab_size(len(vocab), vocab_file)
    return config
