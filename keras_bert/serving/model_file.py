"""Writes the folder of a version for another runtime, from token ids to outputs.

    model.onnx or model.tflite     the model
    vocab.txt                      what its token ids stand for
    export.json                    the task, its labels, inputs and outputs
    README.md                      the model card

The folder appears whole or not at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from keras_bert.checkpoints.model_directory import VOCAB, write_vocab
from keras_bert.common.files import appearing, write_json
from keras_bert.serving.saved_model import CARD, INFO


@dataclass(frozen=True)
class ModelFile:
    """What a model file is written from.

    Attributes:
        model: one of keras_bert.models, or the encoder.
        name: the file's name, whose ending is the format: `.onnx` or `.tflite`.
        vocab: the V tokens in the order of their ids.
        int8: whether the weights are stored as int8.
        absent_outputs: outputs of the model that are not written.
    """

    model: keras.Model
    name: str
    vocab: Sequence[str]
    int8: bool = False
    absent_outputs: Collection[str] = ()


def write_model_file(
    file: ModelFile,
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
) -> None:
    """Writes a version's folder.

    Args:
        file: the model and its format.
        export_dir: the folder.
        info: the content of export.json but for the signatures.
        card: the content of export.json -> that of README.md.

    Raises:
        InputError: a package is missing, the model is too large for the format, or the place
            cannot be written.
    """
    # Imported here: each needs packages of its own, which a user of the other lacks.
    if file.name.endswith(".onnx"):
        from keras_bert.serving.onnx_format import write_onnx as write
    else:
        from keras_bert.serving.litert_format import write_litert as write
    with appearing(export_dir) as folder:
        folder.mkdir()
        signatures = write(
            file.model, folder / file.name, int8=file.int8, left_out=file.absent_outputs
        )
        info = {**info, "signatures": signatures}
        write_vocab(folder / VOCAB, file.vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")
