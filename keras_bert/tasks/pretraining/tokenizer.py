"""Finds the settings of the tokenizer for a pre-training run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.common.errors import InputError
from keras_bert.data.record_files import MANIFEST
from keras_bert.data.records import PretrainingData
from keras_bert.tasks.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings


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
