"""Writes an ONNX model as a version folder.

    model.onnx     the model, from token ids to outputs
    vocab.txt      the tokens in the order of their ids
    export.json    the task, its labels, and the model's inputs and outputs
    README.md      the model card

The folder is written completely or not at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import keras

from keras_bert.checkpoints.tokenizer_files import VOCAB, write_vocab
from keras_bert.common.files import atomic_path, write_json
from keras_bert.serving.onnx_format import write_onnx
from keras_bert.serving.saved_model import CARD, INFO

MODEL = "model.onnx"


def write_onnx_folder(
    model: keras.Model,
    vocab: Sequence[str],
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
    *,
    int8: bool = False,
    omitted_outputs: Collection[str] = (),
) -> None:
    """Writes a version folder with an ONNX file.

    Args:
        model: the network.
        vocab: the tokens in the order of their ids.
        export_dir: the version folder.
        info: the content of export.json without "signatures", which this function adds.
        card: converts the complete content of export.json to the text of README.md.
        int8: the argument of `write_onnx`.
        omitted_outputs: the argument of `write_onnx`.

    Raises:
        InputError: the model is too large, or the folder cannot be written.
    """
    with atomic_path(export_dir) as folder:
        folder.mkdir()
        signatures = write_onnx(model, folder / MODEL, int8=int8, omitted_outputs=omitted_outputs)
        info = {**info, "signatures": signatures}
        write_vocab(folder / VOCAB, vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")
