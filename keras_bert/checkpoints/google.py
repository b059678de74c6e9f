"""Reads TF1 checkpoints in the format of Google's BERT release.

In Google's code, `gelu` means the tanh approximation, which is `gelu_new` in this library. In
checkpoints that earlier versions of this library wrote, `bert_config.json` has additional keys for
the settings that Google's code does not have: the exact gelu, the settings of the tokenizer, label
names.
"""

import re
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np

from keras_bert.checkpoints.checkpoint import Checkpoint, config_of
from keras_bert.checkpoints.tokenizer_files import guess_lower_case, read_vocab
from keras_bert.checkpoints.weights import StoredWeights
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.text.settings import TokenizerSettings

CONFIG, VOCAB, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"

# The additional key for the exact name of a gelu, because Google's code only knows `gelu`.
_EXACT_ACT = "keras_bert_hidden_act"

_SLOT = re.compile(
    r"(/(adam_[mv]|Adam(_1)?|lamb_[mv]|Momentum)|^global_step|^beta[12]_power|^(current_)?loss_scale)$"
)


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
    names = [field.name for field in fields(TokenizerSettings) if field.name in settings]
    tokenizer = {name: settings.pop(name) for name in names}
    config = config_of(folder / CONFIG, settings)
    vocab = read_vocab(folder / VOCAB, config.vocab_size)
    casing = guess_lower_case(vocab, folder.name)
    return Checkpoint(
        path=path,
        kind="a TF1 checkpoint in Google's format",
        config=config,
        vocab=vocab,
        tokenizer_settings=TokenizerSettings.read(folder / CONFIG, tokenizer, casing),
        settings=settings,
        open_weights=partial(GoogleWeights, prefix),
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


class GoogleWeights(StoredWeights):
    """The weights of a TF1 checkpoint.

    Raises:
        InputError: the files are damaged, or of a TF2 checkpoint.
    """

    names = (
        ("^encoder/(embeddings|pooler)/", r"bert/\1/"),
        ("^encoder/", "bert/encoder/"),
        ("^masked_lm/(dense|LayerNorm)/", r"cls/predictions/transform/\1/"),
        ("^masked_lm/", "cls/predictions/"),
        ("^next_sentence/", "cls/seq_relationship/output_"),
        ("^classifier/", "output_"),
        ("^span/", "cls/squad/output_"),
        ("output_kernel$", "output_weights"),
    )
    encoder_prefix = "bert/"

    def __init__(self, prefix: Path):
        import tensorflow as tf

        super().__init__(prefix)
        # A damaged file raises any of these, depending on where it is damaged.
        self._failures = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(self.source)
            shapes = self._reader.get_variable_to_shape_map()
        except self._failures as error:
            raise InputError(f"{prefix}: not a valid TF1 checkpoint ({error})") from None
        if any(".ATTRIBUTES/" in name for name in shapes):
            raise InputError(
                f"{prefix}: is a TF2 object checkpoint; expected a TF1 checkpoint with Google's "
                "names, such as bert/embeddings/word_embeddings"
            )
        self.shapes = {
            name: tuple(shapes[name]) for name in sorted(shapes) if not _SLOT.search(name)
        }
        self.skipped = len(shapes) - len(self.shapes)

    @classmethod
    def is_transposed(cls, path: str) -> bool:
        """Returns whether Google stores a kernel as [out, in]: those of the heads but masked LM."""
        return path in ("next_sentence/kernel", "classifier/kernel", "span/kernel")

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        try:
            return self._reader.get_tensor(name)
        except self._failures as error:
            raise InputError(f"{self.source}: {name} cannot be read ({error})") from None
