"""Damaged, ambiguous and hostile weight files: one-line errors, and no weight is assigned."""

import json
import shutil
import struct

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from tests.other_formats import WRITERS, write_keras_hub, write_tf1

KERNEL = "bert.encoder.layer.1.output.dense.weight"
KERNEL_H5 = "layers/transformer_encoder/_feedforward_intermediate_dense/vars/0"


@pytest.fixture
def saved(tiny, tmp_path):
    """Writes a model directory with a masked-LM head."""
    model = tiny.make("pretrainer")
    save_model_directory(tmp_path / "m", model, ModelDescription(tiny.config, tiny.vocab))
    return tmp_path / "m"


@pytest.fixture
def preset(tiny, tmp_path):
    """Writes a KerasHub preset; returns it and its weights."""
    description = ModelDescription(tiny.config, tiny.vocab)
    write_keras_hub(tmp_path / "preset", tiny.make("pretrainer"), description)
    return tmp_path / "preset", tmp_path / "preset" / "model.weights.h5"


def check_rejected(path, expected):
    """Checks that loading raises one line and leaves the model unchanged."""
    model = BertPretrainer(open_checkpoint(path).config)
    before = model.get_weights()
    with pytest.raises(InputError, match=expected) as caught:
        open_checkpoint(path).load_into(model)
    assert "\n" not in str(caught.value)
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: w.astype(np.int8), r"safetensors: .*\.weight has type int8; expected one of f"),
        (lambda w: w > 0, "has type bool"),
        (lambda w: w.astype(np.complex64), "has type complex64"),
        (lambda w: np.where(w == w.flat[5], np.nan, w), "1 of the 96 values of .* inf or NaN"),
        (lambda w: np.full_like(w, np.inf), "96 of the 96 values"),
        (lambda w: np.full(w.shape, 1e300), "96 of the 96 values"),
    ],
)
def test_weights_must_be_finite_floats(saved, change, expected):
    weights = load_file(saved / "model.safetensors")
    weights[KERNEL] = change(weights[KERNEL])
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    check_rejected(saved, expected)


def test_eight_bit_floats_are_rejected(saved):
    path = saved / "model.safetensors"
    weights = load_file(path)
    weights[KERNEL] = weights[KERNEL].astype(np.int8)
    save_file(weights, path, metadata={"format": "pt"})
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header[KERNEL]["dtype"] = "F8_E4M3"
    header = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    check_rejected(saved, "has type F8_E4M3; expected one of float16")


def test_weight_in_two_shards_is_rejected(saved):
    weights = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    save_file(weights, saved / "a.safetensors", metadata={"format": "pt"})
    save_file({KERNEL: weights[KERNEL] + 1}, saved / "b.safetensors", metadata={"format": "pt"})
    index = dict.fromkeys(weights, "a.safetensors") | {KERNEL: "b.safetensors"}
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    check_rejected(saved, rf"{KERNEL} is in b\.safetensors and in another shard")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("id2label", "x", "id2label is 'x'; expected an object"),
        ("id2label", {"0": 1}, "id2label is"),
        ("id2label", {"0": "a", "one": "b"}, "id2label is"),
        ("id2label", {"0": "a", "1000000": "b"}, "id2label is"),
        ("architectures", 3, "architectures is 3; expected a list"),
        ("hidden_act", None, "hidden_act is null; expected one of gelu"),
    ],
)
def test_settings_of_a_wrong_type_are_rejected(saved, key, value, expected):
    settings = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(settings | {key: value}))
    with pytest.raises(InputError, match=rf"config\.json: {expected}"):
        open_checkpoint(saved)


@pytest.mark.parametrize("form", WRITERS)
def test_casing_that_is_not_a_boolean_is_rejected(tiny, tmp_path, form):
    file, key = {
        "hugging_face": ("tokenizer_config.json", "do_lower_case"),
        "tf1": ("bert_config.json", "do_lower_case"),
        "keras_hub": ("tokenizer.json", "lowercase"),
    }[form]
    description = ModelDescription(tiny.config, tiny.vocab)
    WRITERS[form](tmp_path / "c", tiny.make("encoder"), description)
    settings = json.loads((tmp_path / "c" / file).read_text())
    settings.get("config", settings)[key] = "yes"
    (tmp_path / "c" / file).write_text(json.dumps(settings))
    with pytest.raises(InputError, match=rf"{file}: {key} is 'yes'; expected true or false"):
        open_checkpoint(tmp_path / "c")


def test_target_inside_of_the_source_is_rejected(saved):
    with pytest.raises(InputError, match="is inside the source"):
        convert(saved, saved / "new")
    assert not (saved / "new").exists()


class TestHdf5:
    """Datasets that refer to other files, or are not numbers."""

    def replace(self, file, make):
        """Replaces a dataset by what `make(file, shape)` creates."""
        with h5py.File(file, "r+") as opened:
            shape = opened[KERNEL_H5].shape
            del opened[KERNEL_H5]
            make(opened, shape)

    def test_external_storage(self, preset, tmp_path):
        path, file = preset
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 1000)
        self.replace(
            file,
            lambda opened, shape: opened.create_dataset(
                KERNEL_H5, shape, "f4", external=[(str(secret), 0, 4 * np.prod(shape))]
            ),
        )
        check_rejected(path, f"{KERNEL_H5} has external storage")

    def test_virtual_dataset(self, preset, tmp_path):
        path, file = preset

        def make(opened, shape):
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", shape)
            opened.create_virtual_dataset(KERNEL_H5, layout)

        self.replace(file, make)
        check_rejected(path, f"{KERNEL_H5} is a virtual dataset")

    @pytest.mark.parametrize(
        "kind", [h5py.ref_dtype, h5py.string_dtype(), np.dtype([("a", "f4")]), "i4"]
    )
    def test_other_types(self, preset, kind):
        path, file = preset
        self.replace(file, lambda opened, shape: opened.create_dataset(KERNEL_H5, shape, kind))
        check_rejected(path, "has type .*; expected one of float16")

    def test_external_link(self, preset, tmp_path):
        path, file = preset
        shutil.copy(file, tmp_path / "other.h5")
        link = h5py.ExternalLink(str(tmp_path / "other.h5"), KERNEL_H5)
        self.replace(file, lambda opened, shape: opened.__setitem__(KERNEL_H5, link))
        check_rejected(path, "is missing")

    def test_bytes_damaged_at_random_places(self, preset):
        path, file = preset
        content = file.read_bytes()
        random = np.random.default_rng(0)
        checkpoint = open_checkpoint(path)  # Reads the weights only in `open_weights`.
        messages = []
        for _ in range(200):
            damaged = bytearray(content)
            for place in random.integers(len(content), size=40):
                damaged[place] = random.integers(256)
            file.write_bytes(damaged)
            try:
                with checkpoint.open_weights() as weights:
                    for name in weights.shapes:
                        weights.read(name)
            except InputError as error:
                messages.append(str(error))
        assert len(messages) > 50
        assert not any("\n" in message for message in messages)


def test_binary_checkpoint_file_of_a_tf1_checkpoint_is_ignored(tiny, tmp_path):
    description = ModelDescription(tiny.config, tiny.vocab)
    write_tf1(tmp_path / "tf1", tiny.make("pretrainer"), description)
    (tmp_path / "tf1" / "checkpoint").write_bytes(b"\xff\xfe\x00model_checkpoint_path")
    checkpoint = open_checkpoint(tmp_path / "tf1")
    assert not checkpoint.load_into(BertPretrainer(checkpoint.config)).new
