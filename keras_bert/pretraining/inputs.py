"""Finds the inputs of a pre-training run: records, vocabulary, config and checkpoint.

If several inputs determine the vocabulary, the settings of the tokenizer or the size of the model,
they must agree.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.pretraining.records import MANIFEST, PretrainingData, find_records
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import check_same_vocab, load_vocab

# --- inputs ---


@dataclass(frozen=True)
class PretrainingInputs:
    """The checked inputs of a pre-training run.

    Attributes:
        data: the training records.
        held_out: the evaluation records.
        checkpoint: the initial checkpoint; None for newly initialized weights.
        vocab: the tokens in the order of their ids; None if no input has a vocabulary.
        tokenizer_settings: the settings of the tokenizer that made the records.
        objective: the name of the objective: `mlm_nsp`, `mlm` or `ltr`.
    """

    data: PretrainingData
    held_out: PretrainingData
    checkpoint: Checkpoint | None
    vocab: list[str] | None
    tokenizer_settings: TokenizerSettings
    config: BertConfig
    objective: str

    def record(self) -> dict[str, object]:
        """Returns the entries of run.json that detect changed inputs."""
        vocab = None if self.vocab is None else "\n".join(self.vocab).encode()
        return {
            "objective": self.objective,
            "config": self.config.to_dict(),
            "vocab_sha256": vocab and hashlib.sha256(vocab).hexdigest(),
            # The casing is recorded as a flag.
            **self.tokenizer_settings.non_default(),
            # A model is exported for this length. It is that of the records, since the flag is
            # optional.
            "max_seq_length": self.data.max_seq_length,
            "max_predictions_per_seq": self.data.max_predictions_per_seq,
            "data_fingerprint": self.data.fingerprint,
            "eval_fingerprint": self.held_out.fingerprint,
        }


def find_inputs(settings: PretrainingSettings, num_train_steps: int) -> PretrainingInputs:
    """Finds and checks the inputs of a run; raises InputError if they are unusable or conflict."""
    _check_values(settings, num_train_steps)
    data = find_records(settings.input_file)
    held_out = find_records(settings.eval_file, "eval_file") if settings.eval_file else data
    _check_next_sentence(data, held_out)
    objective = _objective(settings, data)
    checkpoint = open_checkpoint(settings.init_checkpoint) if settings.init_checkpoint else None
    vocab, vocab_file = _vocab(settings, data, held_out, checkpoint)
    config = _config(settings, objective, checkpoint, vocab, vocab_file)
    for records in (data, held_out):
        _check_shape(records, settings, config)
    if settings.export:
        _check_export(data, vocab)
    tokenizer = tokenizer_settings(settings, data, held_out, checkpoint, vocab, vocab_file)
    return PretrainingInputs(data, held_out, checkpoint, vocab, tokenizer, config, objective)


def _check_values(settings: PretrainingSettings, num_train_steps: int) -> None:
    if not (settings.do_train or settings.init_checkpoint):
        raise InputError("--do_train=false needs an --init_checkpoint to evaluate")
    if not math.isfinite(settings.learning_rate):
        raise InputError(f"--learning_rate={settings.learning_rate}: expected a finite number")
    steps, warmup = settings.schedule_steps or num_train_steps, settings.num_warmup_steps
    if settings.do_train and warmup is not None and warmup >= steps:
        logging.warning(
            "--num_warmup_steps=%d: the learning rate never reaches its peak in %d steps",
            warmup,
            steps,
        )


def _check_next_sentence(data: PretrainingData, held_out: PretrainingData) -> None:
    # Held-out records may differ in packing and masking, but not in the next-sentence task.
    expected, found = data.format.next_sentence, held_out.format.next_sentence
    if expected != found:
        raise InputError(
            f"{held_out.files[0]}: was made with next_sentence {found}; expected {expected}, as in "
            f"the training records, {data.files[0]}"
        )


def _objective(settings: PretrainingSettings, data: PretrainingData) -> str:
    """Returns the objective in the settings, or the default for the records."""
    has_next_sentence = data.format.next_sentence != "none"
    if settings.objective == "mlm_nsp" and not has_next_sentence:
        raise InputError(
            f"--objective=mlm_nsp: {data.files[0]} was made with next_sentence none; expected "
            "records with next sentences, or --objective=mlm or ltr"
        )
    return settings.objective or ("mlm_nsp" if has_next_sentence else "mlm")


def _check_shape(data: PretrainingData, settings: PretrainingSettings, config: BertConfig) -> None:
    for name in ("max_seq_length", "max_predictions_per_seq"):
        requested, found = getattr(settings, name), getattr(data, name)
        if requested not in (0, found):
            raise InputError(
                f"--{name}={requested}: {data.files[0]} was made with {name} {found}; expected the "
                "same value"
            )
    if data.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"{data.files[0]} has max_seq_length {data.max_seq_length}, but the model has only "
            f"{config.max_position_embeddings} positions (max_position_embeddings)"
        )


def _check_export(data: PretrainingData, vocab: list[str] | None) -> None:
    """Checks before training that the model can be exported afterwards."""
    # Imported late: only an export needs the serving modules.
    from keras_bert.tasks.loading import SHORTEST

    if vocab is None:
        raise InputError(
            f"--export: the folder of {data.files[0]} has no vocabulary; expected a --vocab_file"
        )
    if data.max_seq_length < SHORTEST:
        raise InputError(
            f"--export: {data.files[0]} has max_seq_length {data.max_seq_length}; expected at "
            f"least {SHORTEST}"
        )


def _vocab(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    checkpoint: Checkpoint | None,
) -> tuple[list[str] | None, Path | None]:
    """Returns the vocabulary and its path; (None, None) if no input has a vocabulary.

    The vocabulary of the flag or the records comes before that of the checkpoint. All must agree,
    but the former may have other tokens in place of the checkpoint's [unusedN]: `build_vocab
    --extend_vocab` writes such a vocabulary.
    """
    files = [Path(settings.vocab_file)] if settings.vocab_file else []
    files += [found.vocab_file for found in (data, held_out) if found.vocab_file]
    vocabs = [(load_vocab(path), path) for path in dict.fromkeys(files)]
    for other in vocabs[1:]:
        check_same_vocab(vocabs[0], other)
    if checkpoint and checkpoint.vocab:
        pretrained = checkpoint.vocab, checkpoint.path
        if not vocabs:
            return pretrained
        check_same_vocab(vocabs[0], pretrained, may_extend=True)
    return vocabs[0] if vocabs else (None, None)


def _config(
    settings: PretrainingSettings,
    objective: str,
    checkpoint: Checkpoint | None,
    vocab: list[str] | None,
    vocab_file: Path | None,
) -> BertConfig:
    if settings.bert_config:
        config = BertConfig.from_json(settings.bert_config)
        bundled = not Path(settings.bert_config).is_file()
        if bundled and vocab and not checkpoint:
            # A bundled config defines the encoder's size only; the vocabulary is the user's.
            config = replace(config, vocab_size=len(vocab))
    elif checkpoint:
        config = checkpoint.config
    else:
        raise InputError(
            "--bert_config is missing; expected a JSON file, or tiny, mini, small, medium, base or "
            "large"
        )
    _check_direction(settings, objective, config, checkpoint)
    config = replace(config, is_decoder=objective == "ltr")
    if checkpoint and config != replace(checkpoint.config, is_decoder=config.is_decoder):
        raise InputError(
            f"--bert_config={settings.bert_config} differs from the config of "
            f"--init_checkpoint={settings.init_checkpoint}; omit --bert_config to use the latter"
        )
    if vocab:
        config.check_vocab_size(len(vocab), vocab_file)
    return config


def _check_direction(
    settings: PretrainingSettings, objective: str, config: BertConfig, checkpoint: Checkpoint | None
) -> None:
    """Rejects left-to-right models unless the objective is `ltr`.

    With `ltr`, training may start from any model, but evaluation needs a left-to-right model.
    """
    given = {"bert_config": config} if settings.bert_config else {}
    given |= {"init_checkpoint": checkpoint.config} if checkpoint else {}
    for flag, found in given.items():
        if found.is_decoder and objective != "ltr":
            raise InputError(
                f"--{flag}={getattr(settings, flag)} is a left-to-right model (is_decoder); "
                f"expected --objective=ltr, got {objective}"
            )
    if objective == "ltr" and checkpoint and not checkpoint.config.is_decoder:
        if not settings.do_train:
            raise InputError(
                f"--objective=ltr: --init_checkpoint={settings.init_checkpoint} is a bidirectional "
                "model; expected a left-to-right model, or --do_train"
            )
        logging.info("%s is a bidirectional model; training it left to right", checkpoint.path)


# --- settings of the tokenizer ---


def tokenizer_settings(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    checkpoint: Checkpoint | None,
    vocab: list[str] | None,
    vocab_file: Path | None,
) -> TokenizerSettings:
    """Returns the settings of the tokenizer.

    Flag, records and checkpoint must agree on them, except that the records may have additional
    user tokens, and another limit of characters per word, of which the checkpoint's is used. If
    none of them has the casing, it is inferred from the tokens of the vocabulary.
    """
    declared: dict[str, TokenizerSettings] = {}
    for records in (data, held_out):
        for folder, manifest in records.manifests.items():
            declared[str(folder)] = TokenizerSettings.read(folder / MANIFEST, manifest["settings"])
    model = checkpoint.tokenizer_settings if checkpoint and checkpoint.vocab else None
    _check_user_tokens(declared, model, checkpoint)
    if model:
        declared[str(checkpoint.path)] = model
    flag, do_lower_case = "--do_lower_case", settings.do_lower_case
    for name in TokenizerSettings().to_dict():
        if name == "max_input_chars_per_word":
            continue
        values = {where: each.effective()[name] for where, each in declared.items()}
        if name == "do_lower_case" and do_lower_case is not None:
            values = {flag: do_lower_case, **values}
        if len(set(values.values())) > 1:
            found = ", ".join(f"{where} is {value}" for where, value in values.items())
            remedy = ""
            if model:
                remedy = f"; create the records with --{name}={model.effective()[name]}"
            raise InputError(
                f"{name} differs: {found}; expected the same value for records and model{remedy}"
            )
    if declared:
        limit = [*declared.values()][-1].max_input_chars_per_word
        return replace(next(iter(declared.values())), max_input_chars_per_word=limit)
    if do_lower_case is None and vocab is not None:  # Without a vocabulary no casing is saved.
        do_lower_case = guess_lower_case(vocab)
        logging.info(
            "--do_lower_case is not set; inferred from the tokens of %s: --do_lower_case=%s",
            vocab_file,
            str(do_lower_case).lower(),
        )
    return TokenizerSettings(do_lower_case is not False)


def _check_user_tokens(
    records: Mapping[str, TokenizerSettings],
    model: TokenizerSettings | None,
    checkpoint: Checkpoint | None,
) -> None:
    """Checks that all records have the same user tokens, and at least those of the model."""
    found = [(where, {*settings.user_tokens}) for where, settings in records.items()]
    if model:
        own = {*model.user_tokens}
        for where, settings in records.items():
            missing = own - {*settings.user_tokens}
            if missing:
                name = min(token.content for token in missing)
                raise InputError(
                    f"{where}: has no user token {name!r}, which {checkpoint.path} has; create the "
                    "records with the --user_tokens of the model"
                )
    for where, tokens in found[1:]:
        first, expected = found[0]
        if tokens != expected:
            name = min(token.content for token in tokens ^ expected)
            raise InputError(
                f"{where}: has other user tokens than {first}: {name!r} differs; expected the same "
                "in every dataset"
            )
