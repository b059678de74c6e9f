"""A model -> a version's folder for another runtime: from token ids to the model's outputs.

    model.onnx or model.tflite     the model
    vocab.txt                      what its token ids stand for
    export.json                    the task, its labels, inputs and outputs
    README.md                      the model card

The folder appears whole or not at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import keras

from keras_bert.checkpoints.model_directory import VOCAB, write_vocab
from keras_bert.common.files import appearing, write_json
from keras_bert.serving.saved_model import CARD, INFO


def write_model_file(
    model: keras.Model,
    export_dir: Path,
    name: str,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
    vocab: Sequence[str],
    *,
    int8: bool = False,
    left_out: Collection[str] = (),
) -> None:
    """Writes a version's folder.

    Args:
        model: one of keras_bert.models, or the encoder.
        export_dir: the folder.
        name: of the model's file, which says the format: `.onnx` or `.tflite`.
        info: what export.json says.
        card: what export.json says -> what README.md says.
        vocab: the V pieces in the order of their ids.
        int8: whether the weights are stored as int8.
        left_out: outputs of the model that are not written.

    Raises:
        InputError: a package is missing, the model is too large for the format, or the place
            cannot be written.
    """
    # Imported here: each needs packages of its own, which a user of the other lacks.
    if name.endswith(".onnx"):
        from keras_bert.serving.onnx_format import write_onnx as write
    else:
        from keras_bert.serving.litert_format import write_litert as write
    with appearing(export_dir) as folder:
        folder.mkdir()
        signatures = write(model, folder / name, int8=int8, left_out=left_out)
        info = {**info, "signatures": signatures}
        write_vocab(folder / VOCAB, vocab)
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")
