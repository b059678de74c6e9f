"""Writes an ONNX or LiteRT model as a version folder.

    model.onnx or model.tflite     the model, from token ids to outputs
    vocab.txt                      the tokens in the order of their ids
    export.json                    the task, its labels, and the model's inputs and outputs
    README.md                      the model card

The folder is written completely or not at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from keras_bert.checkpoints.tokenizer_files import VOCAB, write_vocab
from keras_bert.common.files import atomic_path, write_json
from keras_bert.serving.saved_model import CARD, INFO


@dataclass(frozen=True)
class ModelFile:
    """A model, and the name and options of the file that it is written to.

    The extension of `name`, `.onnx` or `.tflite`, selects the format. `vocab` lists the tokens in
    the order of their ids. `litert_format.write_litert` describes `int8` and `omitted_outputs`.
    """

    model: keras.Model
    name: str
    vocab: Sequence[str]
    int8: bool = False
    omitted_outputs: Collection[str] = ()


def write_model_file(
    file: ModelFile,
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
) -> None:
    """Writes a version folder with a model file.

    Args:
        file: the model and its file.
        export_dir: the version folder.
        info: the content of export.json without "signatures", which this function adds.
        card: converts the complete content of export.json to the text of README.md.

    Raises:
        InputError: the model is too large, or the folder cannot be written.
    """
    # Imported here, because users of one format may not have the packages for the other one.
    if file.name.endswith(".onnx"):
        from keras_bert.serving.onnx_format import write_onnx as write
    else:
        from keras_bert.serving.litert_format import write_litert as write
    with atomic_path(export_dir) as folder:
        folder.mkdir()
        signatures = write(
            file.model, folder / file.name, int8=file.int8, omitted_outputs=file.omitted_outputs
        )
        info = {**info, "signatures": signatures}
        write_vocab(folder / VOCAB, file.vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")
