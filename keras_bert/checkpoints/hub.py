"""Downloads models of the Hugging Face Hub into the cache of the package huggingface_hub."""

import os
import re
from pathlib import Path

from keras_bert.errors import InputError, shorten

_PREFIX = "hf://"
# NAME or ORGANIZATION/NAME, as the Hub accepts them.
_PART = r"\w(?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:{_PART}/)?{_PART}", re.ASCII)
# A repository may have the same weights in many formats, of which one is downloaded.
_HUGGING_FACE = [
    *("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    # sentence-transformers, whose modules are in folders such as 1_Pooling.
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("[0-9]_*.json", "[0-9]_*.safetensors", "[0-9]_*.txt"),
]
_KERAS_HUB = ["metadata.json", "task.json", "preprocessor.json", "assets/*", "*.weights.h5"]
_TF1 = ["bert_config.json", "checkpoint", "*.ckpt*"]


def is_hub_name(path: str | os.PathLike) -> bool:
    """Returns whether a path is the NAME of a model of the Hub, and not that of a file or folder.

    A name that starts with an existing folder is a path.
    """
    if not isinstance(path, str) or not _NAME.fullmatch(path):
        return False
    # A TF1 checkpoint is named by the prefix of its files.
    return not any(map(os.path.exists, (path, f"{path}.index", os.path.dirname(path))))


def local_model(path: str | os.PathLike, hub_names: bool = False) -> Path:
    """Returns the folder of a model of the Hub, which is downloaded if necessary.

    Args:
        path: hf://NAME, where NAME is that of a model on the Hub, such as bert-base-uncased or
            google/bert_uncased_L-2_H-128_A-2. Other paths are returned as they are.
        hub_names: whether `path` may be NAME without hf://, as for `is_hub_name`.
    """
    name = str(path).removeprefix(_PREFIX)
    if name == str(path):
        if not (hub_names and is_hub_name(path)):
            return Path(path)
    elif not _NAME.fullmatch(name):
        raise InputError(f"{path}: expected {_PREFIX}NAME or {_PREFIX}ORGANIZATION/NAME")
    where = f"{path}: {'' if name != path else 'no such path, and '}the model on the Hub"
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise InputError(
            f"{where} cannot be downloaded without the package huggingface_hub; expected a model "
            "directory, or the package: pip install huggingface_hub"
        ) from None
    try:
        model = Path(snapshot_download(name, allow_patterns=_HUGGING_FACE))
        if not any(model.rglob("*.safetensors")):
            snapshot_download(name, allow_patterns=[*_HUGGING_FACE, *_KERAS_HUB, *_TF1])
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{where} does not exist, or is private; expected another name, or access: hf auth "
            "login"
        ) from None
    except Exception as error:  # Also those of the HTTP library, which depends on the version.
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(
            f"{where} cannot be downloaded ({shorten(reason)}); expected a connection to the Hub, "
            f"or the folder of another machine: hf download {name} --local-dir DIR"
        ) from error
    if not any(any(model.rglob(f)) for f in ("*.safetensors", "*.weights.h5", "*.ckpt*.index")):
        raise InputError(
            f"{where} has no model.safetensors; expected it, a KerasHub preset or a TF1 checkpoint."
            " pytorch_model.bin, a pickle, is converted once with transformers: AutoModelForPre"
            f"Training.from_pretrained({name!r}).save_pretrained(DIR)"
        )
    return model
