"""A model on disk: a Hugging Face directory that transformers opens too.

`config.json`, `model.safetensors`, and with a vocabulary `vocab.txt` and `tokenizer_config.json`.
Ours and Hugging Face's are opened alike; a directory is written beside its place and renamed, so
that it appears whole or not at all. No pickle anywhere.

    directory = open_model_directory("run/model")
    model = BertPretrainer(directory.config)
    print(directory.load_into(model))
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from safetensors import SafetensorError

from keras_bert.checkpoints.weights import LoadReport, load_weights, write_weights
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import appearing, read_json, write_bytes, write_json
from keras_bert.vocabulary import check_vocab, load_vocab

CONFIG, WEIGHTS, VOCAB, TOKENIZER = (
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer_config.json",
)

# Our model's class -> the transformers class that has the same heads.
_ARCHITECTURES = {
    "BertEncoder": "BertModel",
    "BertPretrainer": "BertForPreTraining",
    "BertClassifier": "BertForSequenceClassification",
    "BertTokenClassifier": "BertForTokenClassification",
    "BertSpanLabeler": "BertForQuestionAnswering",
}

# Hugging Face's other names for our activations; they compute the same up to rounding.
_ACTIVATIONS_READ = {
    "gelu_python": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
_ACTIVATIONS_WRITTEN = {"gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class ModelDirectory:
    """What a model directory says of itself, read and checked; the weights are still on disk.

    Attributes:
        path: the directory.
        config: sizes and settings.
        vocab: the V pieces in the order of their ids, or None if the directory has none.
        do_lower_case: whether text is lower-cased before it is cut into pieces.
    """

    path: Path
    config: BertConfig
    vocab: list[str] | None
    do_lower_case: bool

    def load_into(self, model: keras.Model) -> LoadReport:
        """Fills a model with the directory's weights.

        Args:
            model: one of keras_bert.models, or the encoder.

        Returns:
            What was loaded, what is new, what was ignored.

        Raises:
            InputError: the weights do not fit the model.
        """
        return load_weights(model, self.path / WEIGHTS)


def open_model_directory(path: str | os.PathLike) -> ModelDirectory:
    """Reads all of a model directory but its weights.

    Args:
        path: a directory of ours or of Hugging Face's.

    Returns:
        What it says of itself.

    Raises:
        InputError: no such directory, a file is missing or cannot be read, or the vocabulary does
            not fit the config.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such directory; expected one with {CONFIG} and {WEIGHTS}")
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: has no {CONFIG}; expected a model directory")
    if not (path / WEIGHTS).is_file():
        raise InputError(f"{path}: has no {WEIGHTS}; expected a model directory" + _advice(path))
    config = _read_config(path / CONFIG)
    vocab, do_lower_case = _read_tokenizer(path)
    if vocab:
        config.check_vocab_size(len(vocab), path / VOCAB)
    return ModelDirectory(path, config, vocab, do_lower_case)


def save_model_directory(
    path: str | os.PathLike,
    model: keras.Model,
    config: BertConfig,
    vocab: list[str] | None = None,
    do_lower_case: bool = True,
) -> None:
    """Writes a model directory, whole or not at all; an earlier one in its place is replaced.

    Args:
        path: the directory; its parent is made if need be.
        model: one of keras_bert.models, or the encoder.
        config: sizes and settings.
        vocab: the V pieces in the order of their ids.
        do_lower_case: whether text is lower-cased before it is cut into pieces.

    Raises:
        InputError: the place cannot be written, or holds other things than a model directory.
    """
    path = Path(path).absolute()
    check_place(path)
    if vocab is not None:
        config.check_vocab_size(len(vocab), path / VOCAB)
    with appearing(path, failures=(SafetensorError,)) as partial:
        partial.mkdir()
        write_json(partial / CONFIG, _hugging_face_config(model, config, vocab))
        if vocab is not None:
            write_bytes(partial / VOCAB, "".join(f"{piece}\n" for piece in vocab).encode())
            write_json(partial / TOKENIZER, _tokenizer_config(config, do_lower_case))
        write_weights(model, partial / WEIGHTS)


def _advice(path: Path) -> str:
    if not (path / "pytorch_model.bin").is_file():
        return ""
    return (
        "; it has pytorch_model.bin, a pickle, which is not opened for safety: convert it once "
        "with transformers, AutoModelForPreTraining.from_pretrained(DIR).save_pretrained(NEW_DIR)"
    )


def _read_config(path: Path) -> BertConfig:
    values = read_json(path)
    act = values.get("hidden_act")
    if isinstance(act, str):
        values["hidden_act"] = _ACTIVATIONS_READ.get(act, act)
    try:
        return BertConfig.from_dict(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_tokenizer(path: Path) -> tuple[list[str] | None, bool]:
    """Returns the vocabulary and the lower-casing of `vocab.txt`, else of `tokenizer.json`."""
    settings = read_json(path / TOKENIZER) if (path / TOKENIZER).is_file() else {}
    if (path / VOCAB).is_file():
        return load_vocab(path / VOCAB), bool(settings.get("do_lower_case", True))
    fast = path / "tokenizer.json"
    if not fast.is_file():
        return None, bool(settings.get("do_lower_case", True))
    # All that transformers writes from its version 5 on.
    values = read_json(fast)
    if (values.get("model") or {}).get("type") != "WordPiece":
        raise InputError(f"{fast}: expected a WordPiece tokenizer, as BERT's is")
    ids = values["model"]["vocab"]
    vocab = sorted(ids, key=ids.get)
    if [ids[piece] for piece in vocab] != list(range(len(vocab))):
        raise InputError(f"{fast}: expected the ids 0 to {len(vocab) - 1}, each once")
    check_vocab(vocab, where=str(fast))
    return vocab, bool((values.get("normalizer") or {}).get("lowercase", True))


def _hugging_face_config(
    model: keras.Model, config: BertConfig, vocab: list[str] | None
) -> dict[str, Any]:
    values = config.to_dict()
    values["hidden_act"] = _ACTIVATIONS_WRITTEN.get(config.hidden_act, config.hidden_act)
    extra = {
        "architectures": [_ARCHITECTURES[type(model).__name__]],
        "model_type": "bert",
        "pad_token_id": vocab.index("[PAD]") if vocab else 0,
        "position_embedding_type": "absolute",
        "dtype": "float32",
    }
    if hasattr(model, "num_labels"):
        extra["id2label"] = {str(i): f"LABEL_{i}" for i in range(model.num_labels)}
        extra["label2id"] = {f"LABEL_{i}": i for i in range(model.num_labels)}
    return extra | values


def _tokenizer_config(config: BertConfig, do_lower_case: bool) -> dict[str, Any]:
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": config.max_position_embeddings,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }


def check_place(path: Path) -> None:
    """Refuses to replace anything but a directory that this module wrote."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path}: is a file; expected a new or earlier model directory")
    foreign = sorted({entry.name for entry in path.iterdir()} - {CONFIG, WEIGHTS, VOCAB, TOKENIZER})
    if foreign:
        raise InputError(
            f"{path}: holds {', '.join(foreign)}; expected a new or earlier model directory of "
            "ours, for saving replaces all of it"
        )
