"""What a pre-training run starts from: settings in; records, vocabulary, config that agree out.

Flags, records, a bundled or given config and the checkpoint to start from each say something of
the vocabulary, its casing and the sizes. Whatever they say must be the same.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, guess_lower_case
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.tasks.pretraining.records import PretrainingData, find_records
from keras_bert.tasks.pretraining.settings import PretrainingSettings
from keras_bert.text.vocabulary import load_vocab


@dataclass(frozen=True)
class PretrainingInputs:
    """What a run starts from, checked.

    Attributes:
        data: the training records.
        held_out: the records of evaluations.
        start: the model directory to start from, or None.
        vocab: the V pieces, or None where nothing tells them.
        do_lower_case: the casing of the vocabulary.
        config: the encoder's sizes and settings.
        objective: what is predicted: `mlm_nsp`, `mlm` or `ltr`.
    """

    data: PretrainingData
    held_out: PretrainingData
    start: Checkpoint | None
    vocab: list[str] | None
    do_lower_case: bool
    config: BertConfig
    objective: str

    def record(self) -> dict[str, object]:
        """Returns what run.json keeps of the inputs, so that changed ones are noticed."""
        vocab = None if self.vocab is None else "\n".join(self.vocab).encode()
        return {
            "objective": self.objective,
            "config": self.config.to_dict(),
            "vocab_sha256": vocab and hashlib.sha256(vocab).hexdigest(),
            # What they have, whatever was asked of them: a model is served at its length.
            "max_seq_length": self.data.max_seq_length,
            "max_predictions_per_seq": self.data.max_predictions_per_seq,
            "data_fingerprint": self.data.fingerprint,
            "eval_fingerprint": self.held_out.fingerprint,
        }


def find_inputs(settings: PretrainingSettings, num_train_steps: int) -> PretrainingInputs:
    """Finds and checks what a run starts from.

    Args:
        settings: what the run is made of.
        num_train_steps: its length.

    Returns:
        The inputs.

    Raises:
        InputError: something is missing or damaged, or two things do not agree.
    """
    _check_values(settings, num_train_steps)
    data = find_records(settings.input_file)
    held_out = find_records(settings.eval_file, "eval_file") if settings.eval_file else data
    _check_next_sentence(data, held_out)
    objective = _objective(settings, data)
    start = open_checkpoint(settings.init_checkpoint) if settings.init_checkpoint else None
    vocab, vocab_file = _vocab(settings, data, held_out, start)
    config = _config(settings, objective, start, vocab, vocab_file)
    for records in (data, held_out):
        _check_shape(records, settings, config)
    if settings.export:
        _check_export(data, vocab)
    do_lower_case = _do_lower_case(settings, data, held_out, start, vocab, vocab_file)
    return PretrainingInputs(data, held_out, start, vocab, do_lower_case, config, objective)


def _check_values(settings: PretrainingSettings, num_train_steps: int) -> None:
    if not (settings.do_train or settings.init_checkpoint):
        raise InputError("--do_train=false needs an --init_checkpoint to evaluate")
    if not math.isfinite(settings.learning_rate):
        raise InputError(f"--learning_rate={settings.learning_rate} is not a number")
    steps = settings.schedule_steps or num_train_steps
    if settings.do_train and settings.num_warmup_steps >= steps:
        logging.warning(
            "--num_warmup_steps=%d: the learning rate never reaches its peak in %d steps",
            settings.num_warmup_steps,
            steps,
        )


def _check_next_sentence(data: PretrainingData, held_out: PretrainingData) -> None:
    # Packed or masked otherwise, held-out records ask the same; another next sentence they do not.
    asked, found = data.kind.next_sentence, held_out.kind.next_sentence
    if asked != found:
        raise InputError(
            f"{held_out.files[0]} was made with next_sentence {found}, but {data.files[0]} with "
            f"{asked}; a model is evaluated on what it was trained on"
        )


def _objective(settings: PretrainingSettings, data: PretrainingData) -> str:
    """The objective that is asked for, else the one that the records are of."""
    has_next_sentence = data.kind.next_sentence != "none"
    if settings.objective == "mlm_nsp" and not has_next_sentence:
        raise InputError(
            f"--objective=mlm_nsp: {data.files[0]} was made with next_sentence none; expected "
            "records with next sentences, or --objective=mlm or ltr"
        )
    return settings.objective or ("mlm_nsp" if has_next_sentence else "mlm")


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


def _check_export(data: PretrainingData, vocab: list[str] | None) -> None:
    """Refuses what could not be exported after the whole training."""
    # Late: only an export needs what serves.
    from keras_bert.tasks.export.settings import SHORTEST

    if vocab is None:
        raise InputError(
            f"--export: {data.files[0]} has no vocabulary beside it; expected a --vocab_file"
        )
    if data.max_seq_length < SHORTEST:
        raise InputError(
            f"--export: {data.files[0]} has max_seq_length {data.max_seq_length}; a model is "
            f"served for {SHORTEST} pieces at least"
        )


def _do_lower_case(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    start: Checkpoint | None,
    vocab: list[str] | None,
    vocab_file: Path | None,
) -> bool:
    """The one casing that the flag, the records and the starting point agree on."""
    said = {} if settings.do_lower_case is None else {"--do_lower_case": settings.do_lower_case}
    for records in (data, held_out):
        for folder, manifest in records.manifests.items():
            said[str(folder)] = manifest["settings"]["do_lower_case"]
    if start and start.vocab:
        said[str(start.path)] = start.do_lower_case
    if len(set(said.values())) > 1:
        words = ", ".join(f"{name} is {value}" for name, value in said.items())
        raise InputError(f"do_lower_case differs: {words}; records and model must share one")
    if said or vocab is None:  # Without a vocabulary no casing is saved.
        return next(iter(said.values()), True)
    looks_lower_case = guess_lower_case(vocab, vocab_file)
    logging.info(
        "nothing says the casing of %s; by its pieces --do_lower_case=%s",
        vocab_file,
        str(looks_lower_case).lower(),
    )
    return looks_lower_case


def _vocab(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    start: Checkpoint | None,
) -> tuple[list[str] | None, Path | None]:
    """The one vocabulary that flags, records and the starting point agree on."""
    files = [Path(settings.vocab_file)] if settings.vocab_file else []
    files += [found.vocab_file for found in (data, held_out) if found.vocab_file]
    vocabs = [(load_vocab(path), path) for path in dict.fromkeys(files)]
    if start and start.vocab:
        vocabs.append((start.vocab, start.path))
    for vocab, path in vocabs[1:]:
        if vocab != vocabs[0][0]:
            raise InputError(
                f"{path} ({len(vocab)} pieces) is another vocabulary than {vocabs[0][1]} "
                f"({len(vocabs[0][0])} pieces); records and model must share one"
            )
    return vocabs[0] if vocabs else (None, None)


def _config(
    settings: PretrainingSettings,
    objective: str,
    start: Checkpoint | None,
    vocab: list[str] | None,
    vocab_file: Path | None,
) -> BertConfig:
    if settings.bert_config:
        config = BertConfig.from_json(settings.bert_config)
        bundled = not Path(settings.bert_config).is_file()
        if bundled and vocab and not start:
            # A bundled config fixes the encoder's size; the vocabulary is the user's own.
            config = replace(config, vocab_size=len(vocab))
    elif start:
        config = start.config
    else:
        raise InputError(
            "--bert_config is missing: a JSON file, or tiny, mini, small, medium, base or large"
        )
    _check_direction(settings, objective, config, start)
    config = replace(config, is_decoder=objective == "ltr")
    if start and config != replace(start.config, is_decoder=config.is_decoder):
        raise InputError(
            f"--bert_config={settings.bert_config} differs from the config of "
            f"--init_checkpoint={settings.init_checkpoint}; leave it out to take the checkpoint's"
        )
    if vocab:
        config.check_vocab_size(len(vocab), vocab_file)
    return config


def _check_direction(
    settings: PretrainingSettings, objective: str, config: BertConfig, start: Checkpoint | None
) -> None:
    """Refuses what is left to right but for `ltr`, which may start from anything if it trains."""
    given = {"bert_config": config} if settings.bert_config else {}
    given |= {"init_checkpoint": start.config} if start else {}
    for flag, found in given.items():
        if found.is_decoder and objective != "ltr":
            raise InputError(
                f"--{flag}={getattr(settings, flag)} is a left-to-right model (is_decoder); "
                f"expected --objective=ltr, got {objective}"
            )
    if objective == "ltr" and start and not start.config.is_decoder:
        if not settings.do_train:
            raise InputError(
                f"--objective=ltr: --init_checkpoint={settings.init_checkpoint} attends to both "
                "sides; expected a left-to-right model, or --do_train"
            )
        logging.info("%s attends to both sides; it goes on left to right", start.path)
