"""Reads TF1 checkpoints in the format of Google's BERT release.

In Google's code, `gelu` means the tanh approximation, which is `gelu_new` in this library. In
checkpoints that earlier versions of this library wrote, `bert_config.json` has additional keys for
the settings that Google's code does not have: the exact gelu, the settings of the tokenizer, label
names.
"""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.checkpoints.weights import Layout, StoredWeights
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab, load_vocab

CONFIG, VOCAB, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"

# The additional key for the exact name of a gelu, because Google's code only knows `gelu`.
_EXACT_ACT = "keras_bert_hidden_act"

# Layer names of this library -> Google's; all other parts of a name are the same.
_LAYERS = (
    (re.compile(r"^encoder/(embeddings|pooler)/"), r"bert/\1/"),
    (re.compile(r"^encoder/"), "bert/encoder/"),
    (re.compile(r"^masked_lm/(dense|LayerNorm)/"), r"cls/predictions/transform/\1/"),
    (re.compile(r"^masked_lm/"), "cls/predictions/"),
    (re.compile(r"^next_sentence/"), "cls/seq_relationship/output_"),
    (re.compile(r"^classifier/"), "output_"),
    (re.compile(r"^span/"), "cls/squad/output_"),
)
_SLOT = re.compile(
    r"(/(adam_[mv]|Adam(_1)?|lamb_[mv]|Momentum)|^global_step|^beta[12]_power|^(current_)?loss_scale)$"
)


def google_name(path: str) -> str:
    """Converts a variable path of this library to the name in Google's checkpoints.

    `encoder/layer_0/output/dense/kernel` becomes `bert/encoder/layer_0/output/dense/kernel`. Raises
    a KeyError if no model of this library has such a variable.
    """
    for ours, theirs in _LAYERS:
        if ours.match(path):
            name = ours.sub(theirs, path)
            return re.sub(r"(^|/)output_kernel$", r"\1output_weights", name)
    raise KeyError(path)


def _transpose(path: str, value: np.ndarray) -> np.ndarray:
    """Transposes the kernels that Google stores as [out, in]: of all heads except masked LM."""
    is_head = path in ("next_sentence/kernel", "classifier/kernel", "span/kernel")
    return value.T if is_head else value


LAYOUT = Layout(google_name, store=_transpose, restore=_transpose, encoder_prefix="bert/")


def is_google_checkpoint(path: Path) -> bool:
    """Returns whether a path is a TF1 checkpoint: a prefix or a directory."""
    if path.is_dir():
        # Some Hugging Face directories also contain Google's config.
        is_other = any(path.glob("model.safetensors*"))
        return not is_other and ((path / CONFIG).is_file() or any(path.glob("*.ckpt*.index")))
    return path.with_name(f"{path.name}.index").is_file()


def open_google_checkpoint(path: Path) -> Checkpoint:
    """Opens a TF1 checkpoint without reading its weights.

    The path is a prefix such as `bert_model.ckpt`, or a directory. `bert_config.json` and
    `vocab.txt` are read from the folder of the weights.

    Raises:
        InputError: the config or the weights are missing or cannot be read, or the vocabulary does
            not match the config.
    """
    prefix = _prefix(path) if path.is_dir() else path
    folder = prefix.parent
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder}: has no {CONFIG}; expected it next to the weights. Copy the one that was "
            "used in training"
        )
    settings = read_json(folder / CONFIG)
    exact = settings.pop(_EXACT_ACT, None)
    if settings.get("hidden_act", "gelu") == "gelu":
        settings["hidden_act"] = exact or "gelu_new"
    stated = {*TokenizerSettings().to_dict(), USER_TOKENS} & settings.keys()
    stated = {name: settings.pop(name) for name in stated}
    try:
        config = BertConfig.from_dict(settings)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    vocab = load_vocab(folder / VOCAB) if (folder / VOCAB).is_file() else None
    if vocab:
        vocab = fit_vocab(vocab, config.vocab_size, folder / VOCAB)
    casing = guess_lower_case(vocab, folder.name)
    return Checkpoint(
        path=path,
        kind="a TF1 checkpoint in Google's format",
        config=config,
        vocab=vocab,
        tokenizer_settings=TokenizerSettings.read(folder / CONFIG, stated, casing),
        settings=settings,
        open_weights=partial(_open_weights, prefix),
    )


def _prefix(folder: Path) -> Path:
    """Returns the prefix that the file `checkpoint` of a folder names, or else the only one."""
    names = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    state = folder / "checkpoint"
    if state.is_file():
        content = state.read_bytes().decode("utf-8", errors="replace")
        named = re.search(r'^model_checkpoint_path: "(.*)"$', content, re.M)
        if named and Path(named[1]).name in names:
            return folder / Path(named[1]).name
    if len(names) == 1:
        return folder / names[0]
    if not names:
        raise InputError(
            f"{folder}: contains no checkpoint; expected a file such as {PREFIX}.index"
        )
    raise InputError(
        f"{folder}: contains several checkpoints ({', '.join(names)}); expected the path of one of "
        "them"
    )


@contextlib.contextmanager
def _open_weights(prefix: Path) -> Iterator[StoredWeights]:
    import tensorflow as tf

    # A damaged file raises any of these, depending on where it is damaged.
    failures = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
    except failures as error:
        raise InputError(f"{prefix}: not a valid TF1 checkpoint ({error})") from None
    if any(".ATTRIBUTES/" in name for name in shapes):
        raise InputError(
            f"{prefix}: is a TF2 object checkpoint; expected a TF1 checkpoint with Google's names, "
            "such as bert/embeddings/word_embeddings"
        )
    slots = {name for name in shapes if _SLOT.search(name)}

    def read(name: str) -> np.ndarray:
        try:
            return reader.get_tensor(name)
        except failures as error:
            raise InputError(f"{prefix}: {name} cannot be read ({error})") from None

    yield StoredWeights(
        source=str(prefix),
        layout=LAYOUT,
        shapes={name: tuple(shapes[name]) for name in sorted(set(shapes) - slots)},
        read=read,
        skipped=len(slots),
    )
