"""Reads and writes TF1 checkpoints in the format of Google's BERT release.

The written checkpoints can be opened by Google's code. In Google's code, `gelu` means the tanh
approximation, which is `gelu_new` in this library. `bert_config.json` also contains the settings
that Google's code does not have (the exact gelu, the settings of the tokenizer, label names), under
additional keys, which Google's code ignores.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert.checkpoints.checkpoint import Checkpoint, guess_lower_case
from keras_bert.checkpoints.google_zip import unpacked
from keras_bert.checkpoints.model_directory import write_vocab
from keras_bert.checkpoints.weights import Layout, StoredWeights, stored_arrays
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_bytes, write_json
from keras_bert.config import BertConfig
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab, load_vocab

CONFIG, VOCAB, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"
FILES = (CONFIG, VOCAB, "checkpoint", f"{PREFIX}.index", f"{PREFIX}.data-00000-of-00001")

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
    """Returns whether a path is a TF1 checkpoint: a prefix, a directory or a zip."""
    if path.is_dir():
        # Some Hugging Face directories also contain Google's config.
        is_other = any(path.glob("model.safetensors*"))
        return not is_other and ((path / CONFIG).is_file() or any(path.glob("*.ckpt*.index")))
    return path.suffix == ".zip" or path.with_name(f"{path.name}.index").is_file()


def open_google_checkpoint(path: Path) -> Checkpoint:
    """Opens a TF1 checkpoint without reading its weights.

    The path is a prefix such as `bert_model.ckpt`, a directory, or a zip file of Google's release.
    `bert_config.json` and `vocab.txt` are read from the folder of the weights.

    Raises:
        InputError: the config or the weights are missing or cannot be read, or the vocabulary does
            not match the config.
    """
    if path.suffix == ".zip":
        with unpacked(path, f"{CONFIG}|{VOCAB}") as folder:
            found = _read_config_and_tokenizer(folder, path)
        open_weights = partial(_open_zip, path)
    else:
        prefix = _prefix(path) if path.is_dir() else path
        found = _read_config_and_tokenizer(prefix.parent, prefix.parent)
        open_weights = partial(_open_weights, prefix)
    settings, config, vocab, tokenizer = found
    return Checkpoint(
        path=path,
        kind="a TF1 checkpoint in Google's format",
        config=config,
        vocab=vocab,
        tokenizer_settings=tokenizer,
        settings=settings,
        open_weights=open_weights,
    )


def write_google_checkpoint(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    vocab: Sequence[str] | None,
    tokenizer: TokenizerSettings,
) -> None:
    """Writes the files of a TF1 checkpoint; the arguments are those of `write_model_directory`.

    Raises:
        OSError: the weights cannot be written.
        InputError: another file cannot be written.
    """
    import tensorflow as tf

    extra: dict[str, Any] = {
        "do_lower_case": tokenizer.do_lower_case,
        **tokenizer.non_default(),
    }
    if settings["hidden_act"].startswith("gelu"):
        extra |= {"hidden_act": "gelu", _EXACT_ACT: settings["hidden_act"]}
    write_json(folder / CONFIG, {**settings, **extra})
    if vocab is not None:
        write_vocab(folder / VOCAB, vocab)
    arrays = dict(sorted(stored_arrays(weights, LAYOUT).items()))
    tensors = [tf.constant(value) for value in arrays.values()]
    try:
        tf.raw_ops.SaveV2(
            prefix=str(folder / PREFIX),
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=tensors,
        )
    except tf.errors.OpError as error:
        # The message has the form "{{the operation}} FILE; REASON [Op:SaveV2]".
        reason = error.message.rpartition("; ")[2].removesuffix(" [Op:SaveV2]")
        raise OSError(reason) from error
    state = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
    write_bytes(folder / "checkpoint", state.encode())


def _read_config_and_tokenizer(
    folder: Path, where: Path
) -> tuple[dict[str, Any], BertConfig, list[str] | None, TokenizerSettings]:
    """Returns a folder's settings, config, vocabulary and tokenizer; errors call it `where`."""
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{where}: has no {CONFIG}; expected it next to the weights. Copy the one that was "
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
        raise InputError(f"{where / CONFIG}: {error}") from None
    vocab = load_vocab(folder / VOCAB) if (folder / VOCAB).is_file() else None
    if vocab:
        vocab = fit_vocab(vocab, config.vocab_size, where / VOCAB)
    casing = guess_lower_case(vocab, where)
    return settings, config, vocab, TokenizerSettings.read(where / CONFIG, stated, casing)


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


@contextlib.contextmanager
def _open_zip(path: Path) -> Iterator[StoredWeights]:
    files = r"checkpoint|.*\.index|.*\.data-\d+-of-\d+"
    with unpacked(path, files) as folder, _open_weights(_prefix(folder)) as stored:
        yield StoredWeights(**{**vars(stored), "source": str(path)})
