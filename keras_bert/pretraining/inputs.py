"""Finds the inputs of a pre-training run: records, vocabulary, config and checkpoint.

If several inputs determine the vocabulary, the settings of the tokenizer or the size of the model,
they must agree.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from absl import logging

from keras_bert.checkpoints.checkpoint import SHORTEST, Checkpoint
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.pretraining.record_files import MANIFEST, check_same
from keras_bert.pretraining.records import PretrainingData, find_records
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import check_same_vocab, load_vocab


class PretrainingInputs(NamedTuple):
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


def find_inputs(settings: PretrainingSettings) -> PretrainingInputs:
    """Finds and checks the inputs of a run; raises InputError if they are unusable or conflict."""
    if not (settings.do_train or settings.init_checkpoint):
        raise InputError("--do_train=false needs an --init_checkpoint to evaluate")
    data = find_records(settings.input_file)
    held_out = find_records(settings.eval_file, "eval_file") if settings.eval_file else data
    # Held-out records may differ in packing and masking, but not in the next-sentence task.
    check_same("next_sentence", {each.files[0]: each.next_sentence for each in (data, held_out)})
    objective = _objective(settings, data)
    checkpoint = open_checkpoint(settings.init_checkpoint) if settings.init_checkpoint else None
    vocab, vocab_file = _vocab(settings, data, held_out, checkpoint)
    config = _config(settings, objective, checkpoint, vocab, vocab_file)
    for records in (data, held_out):
        _check_shape(records, settings, config)
    if settings.export:
        _check_export(data, vocab)
    tokenizer = _tokenizer_settings(settings, data, held_out, checkpoint)
    if tokenizer is None:
        tokenizer = TokenizerSettings(_casing(settings, vocab, vocab_file))
    return PretrainingInputs(data, held_out, checkpoint, vocab, tokenizer, config, objective)


def _objective(settings: PretrainingSettings, data: PretrainingData) -> str:
    """Returns the objective in the settings, or the default for the records."""
    has_next_sentence = data.next_sentence != "none"
    if settings.objective == "mlm_nsp" and not has_next_sentence:
        raise InputError(
            f"--objective=mlm_nsp: {data.files[0]} was made with next_sentence none; expected "
            "records with next sentences, or --objective=mlm or ltr"
        )
    return settings.objective or ("mlm_nsp" if has_next_sentence else "mlm")


def _check_shape(data: PretrainingData, settings: PretrainingSettings, config: BertConfig) -> None:
    for name in ("max_seq_length", "max_predictions_per_seq"):
        if getattr(settings, name):
            check_same(
                name, {f"--{name}": getattr(settings, name), data.files[0]: getattr(data, name)}
            )
    if data.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"{data.files[0]} has max_seq_length {data.max_seq_length}, but the model has only "
            f"{config.max_position_embeddings} positions (max_position_embeddings)"
        )


def _check_export(data: PretrainingData, vocab: list[str] | None) -> None:
    """Checks before training that the model can be exported afterwards."""
    if vocab is None:
        raise InputError(
            f"--export: the folder of {data.files[0]} has no vocabulary; expected a --vocab_file"
        )
    if data.max_seq_length < SHORTEST:
        raise InputError(
            f"--export: {data.files[0]} has max_seq_length {data.max_seq_length}; expected at "
            f"least {SHORTEST}"
        )


# --- vocabulary and config ---


def _vocab(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    checkpoint: Checkpoint | None,
) -> tuple[list[str] | None, Path | None]:
    """Returns the vocabulary and its path; (None, None) if no input has a vocabulary.

    The vocabulary of the flag or the records comes before that of the checkpoint. All must agree,
    but the former may have other tokens in place of the checkpoint's [unusedN]: `build-vocab
    --extend_vocab` writes such a vocabulary.
    """
    files = [Path(settings.vocab_file)] if settings.vocab_file else []
    files += [records.vocab_file for records in (data, held_out) if records.vocab_file]
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
    """Returns the config of the model; only the objective `ltr` has left-to-right models.

    With `ltr`, training may start from any model, but evaluation needs a left-to-right model.
    """
    configs = {"init_checkpoint": checkpoint.config} if checkpoint else {}
    if settings.bert_config:
        configs = {"bert_config": BertConfig.from_json(settings.bert_config)} | configs
    for flag, config in configs.items():
        if config.is_decoder and objective != "ltr":
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
    first, *rest = (replace(each, is_decoder=objective == "ltr") for each in configs.values())
    if rest and first != rest[0]:
        raise InputError(
            f"--bert_config={settings.bert_config} differs from the config of "
            f"--init_checkpoint={settings.init_checkpoint}; omit --bert_config to use the latter"
        )
    if vocab and not checkpoint and not Path(settings.bert_config).is_file():
        # A bundled config defines the encoder's size only; the vocabulary is the user's.
        return replace(first, vocab_size=len(vocab))
    if vocab:
        first.check_vocab_size(len(vocab), vocab_file)
    return first


# --- settings of the tokenizer ---


def _tokenizer_settings(
    settings: PretrainingSettings,
    data: PretrainingData,
    held_out: PretrainingData,
    checkpoint: Checkpoint | None,
) -> TokenizerSettings | None:
    """Returns the settings of the tokenizer; None if neither records nor checkpoint have any.

    Flag, records and checkpoint must agree on them, except that the records may have additional
    user tokens, and another limit of characters per word, of which the checkpoint's is used.
    """
    declared = {
        str(folder): TokenizerSettings.read(folder / MANIFEST, manifest["settings"])
        for records in (data, held_out)
        for folder, manifest in records.manifests.items()
    }
    model = checkpoint.tokenizer_settings if checkpoint and checkpoint.vocab else None
    check_same("user_tokens", {where: _contents(each) for where, each in declared.items()})
    if model:
        for where, each in declared.items():
            if missing := {*_contents(model)} - {*_contents(each)}:
                raise InputError(
                    f"{where}: has no user token {min(missing)!r}, which {checkpoint.path} has; "
                    "create the records with the --user_tokens of the model"
                )
        declared[str(checkpoint.path)] = model
    for name in TokenizerSettings().to_dict():
        if name == "max_input_chars_per_word":
            continue
        values = {where: each.effective()[name] for where, each in declared.items()}
        if name == "do_lower_case" and settings.do_lower_case is not None:
            values = {"--do_lower_case": settings.do_lower_case, **values}
        remedy = f"; create the records with --{name}={model.effective()[name]}" if model else ""
        check_same(name, values, remedy)
    if not declared:
        return None
    limit = [*declared.values()][-1].max_input_chars_per_word
    return replace(next(iter(declared.values())), max_input_chars_per_word=limit)


def _contents(settings: TokenizerSettings) -> list[str]:
    return sorted(token.content for token in settings.user_tokens)


def _casing(
    settings: PretrainingSettings, vocab: list[str] | None, vocab_file: Path | None
) -> bool:
    """Returns whether text is lower-cased: the flag, or else inferred from the vocabulary."""
    # Without a vocabulary no casing is saved.
    if settings.do_lower_case is not None or vocab is None:
        return settings.do_lower_case is not False
    do_lower_case = guess_lower_case(vocab)
    logging.info(
        "--do_lower_case is not set; inferred from the tokens of %s: --do_lower_case=%s",
        vocab_file,
        str(do_lower_case).lower(),
    )
    return do_lower_case
