"""KerasHub presets: KerasHub's outputs, and settings it lacks; our directories in KerasHub."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.heads import MaskedLMHead
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from tests.checkpoints.conftest import check_rejected
from tests.checkpoints.test_tokenizer_json import vocab_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CLASSIFIER, MASKED_LM = GOLDEN / "keras_hub_classifier", GOLDEN / "keras_hub_masked_lm"
INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


@pytest.fixture
def preset(tmp_path):
    return shutil.copytree(CLASSIFIER, tmp_path / "preset")


def assert_same(found, golden, names):
    for name in names:
        np.testing.assert_allclose(np.asarray(found[name]), golden[name], atol=1e-5, err_msg=name)


def kerashub_masked_lm_logits(model, hidden, positions):
    """Computes the logits of KerasHub's head, which uses erf gelu and epsilon 1e-5."""
    config = replace(model.config, hidden_act="gelu", layer_norm_eps=1e-5)
    head = MaskedLMHead(config)
    head.build((None, None, config.hidden_size))
    head.set_weights(model.masked_lm.get_weights())
    return head(hidden, positions, model.encoder.embeddings.word_embeddings)


def test_classifier_matches_kerashub_outputs():
    checkpoint = open_checkpoint(CLASSIFIER)
    assert checkpoint.config.hidden_act == "gelu_new"
    assert checkpoint.vocab[-2:] == ["caf", "##e"]
    assert checkpoint.do_lower_case
    model = BertClassifier(checkpoint.config, 3)
    report = checkpoint.load_into(model)
    assert (len(report.loaded), report.new, report.ignored, report.skipped) == (41, (), (), 2)
    golden = np.load(CLASSIFIER / "outputs.npz")
    inputs = {name: golden[name] for name in INPUTS}
    found = {**model.encoder(inputs), **model(inputs)}
    assert_same(found, golden, ("sequence_output", "pooled_output", "logits"))


def test_masked_lm_matches_kerashub_outputs():
    checkpoint = open_checkpoint(MASKED_LM)
    model = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(model)
    assert report.new == ("next_sentence/kernel", "next_sentence/bias")
    golden = np.load(MASKED_LM / "outputs.npz")
    inputs = {name: golden[name] for name in INPUTS}
    hidden = model.encoder(inputs)
    assert_same(hidden, golden, ("sequence_output", "pooled_output"))
    logits = kerashub_masked_lm_logits(
        model, hidden["sequence_output"], golden["masked_lm_positions"]
    )
    assert_same({"masked_lm_logits": logits}, golden, ["masked_lm_logits"])


# Texts whose ids differ: the tokens in KerasHub, and those here and in Google's code.
DIFFERENCES = {
    "a\u00a0b": (["[UNK]"], ["a", "b"]),
    "a\u200bb": (["a", "b"], ["a", "##b"]),
    "c" * 101: (["[UNK]"], ["c", *["##c"] * 100]),
    "aß": (["a", "##s", "##s"], ["a", "##ß"]),
    "½": (["1", "##⁄", "##2"], ["½"]),
    "…": ([".", "##.", "##."], ["…"]),
    "中，": (["中", ","], ["中", "，"]),
    "ΑΣ": (["α", "##σ"], ["α", "##ς"]),
}


def test_kerashub_opens_our_directories(tiny, run_in_peers, tmp_path):
    vocab = vocab_of([*DIFFERENCES, "all work café s1⁄2.,ς"])
    config = replace(tiny.config, vocab_size=len(vocab))
    model = tiny.make("pretrainer", config)
    save_model_directory(tmp_path / "model", model, vocab)
    texts = ["All Work CAFÉ", *DIFFERENCES]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    run_in_peers("make_checkpoint_keras_hub.py", tmp_path / "model", tmp_path / "texts.json")
    golden = np.load(tmp_path / "model.npz")
    found = model.encoder({name: golden[name] for name in INPUTS})
    assert_same(found, golden, found)
    theirs, *different = [[vocab[index] for index in row] for row in json.loads(str(golden["ids"]))]
    tokenizer = BertTokenizer(vocab)
    ours = [[vocab[index] for index in row] for row in tokenizer.tokenize(texts).to_list()]
    assert theirs == ours[0]
    assert dict(zip(DIFFERENCES, zip(different, ours[1:], strict=True), strict=True)) == DIFFERENCES


def test_half_precision_presets_load_as_float32(preset):
    with h5py.File(preset / "model.weights.h5", "a") as file:
        values = file["layers/dense/vars"]
        kept = np.asarray(values["1"])
        del values["1"]
        # As Keras writes bfloat16: two opaque bytes for HDF5, and an attribute with the dtype.
        values.create_dataset("1", data=(kept.view(np.uint32) >> 16).astype(np.uint16).view("V2"))
        values["1"].attrs["dtype"] = "bfloat16"
    encoder = BertEncoder(open_checkpoint(preset).config)
    open_checkpoint(preset).load_into(encoder)
    np.testing.assert_allclose(encoder.pooler.dense.bias, kept, rtol=2**-7)


def rewrite_tokenizer(path, class_name="BertTokenizer", **config):
    """Rewrites tokenizer.json of a preset."""
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    config = tokenizer["config"] | config
    (path / "tokenizer.json").write_text(json.dumps({"class_name": class_name, "config": config}))


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({"class_name": "XLMTokenizer"}, 'class_name is "XLMTokenizer"; expected "BertTokenizer"'),
        ({"split": False}, "split is false; expected true"),
        ({"suffix_indicator": "@@"}, 'suffix_indicator is "@@"; expected "##"'),
        ({"oov_token": "<unk>"}, 'oov_token is "<unk>"; expected "[UNK]"'),
        ({"special_tokens_in_strings": True}, "special_tokens_in_strings is true; expected false"),
    ],
)
def test_incompatible_tokenizer_gives_no_vocabulary_and_a_reason(preset, own, line):
    rewrite_tokenizer(preset, **own)
    checkpoint = open_checkpoint(preset)
    assert checkpoint.vocab is None
    assert checkpoint.tokenizer_mismatch.startswith(
        f"{preset}/tokenizer.json: {line}, as in Google's"
    )


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({"lowercase": False, "strip_accents": True}, TokenizerSettings(False, True)),
        ({"lowercase": False, "strip_accents": False}, TokenizerSettings(False)),
        ({"split_on_cjk": False}, TokenizerSettings(tokenize_chinese_chars=False)),
    ],
)
def test_settings_of_the_tokenizer_are_read(preset, own, settings):
    rewrite_tokenizer(preset, **own)
    expected = replace(settings, max_input_chars_per_word=100)
    assert open_checkpoint(preset).tokenizer_settings == expected


def test_uncased_preset_that_keeps_accents_opens_with_a_warning(preset, caplog):
    """Covers KerasHub's default: it keeps accents even for Google's uncased models."""
    for strip_accents, warnings in ((False, 1), (True, 1), (None, 1)):
        rewrite_tokenizer(preset, lowercase=True, strip_accents=strip_accents)
        checkpoint = open_checkpoint(preset)
        assert (checkpoint.tokenizer_mismatch, checkpoint.do_lower_case) == (None, True)
        assert caplog.text.count("strip_accents is false; accents are stripped") == warnings


def test_damaged_or_unsupported_preset_is_rejected(preset):
    original = (preset / "config.json").read_text()
    (preset / "config.json").write_text(original.replace("BertBackbone", "RobertaBackbone"))
    with pytest.raises(InputError, match="class_name is 'RobertaBackbone'; expected 'BertBackbo"):
        open_checkpoint(preset)
    (preset / "config.json").write_text(original.replace('"hidden_dim": 8', '"hidden_dim": 7'))
    with pytest.raises(InputError, match=r"config\.json: hidden_size is 7"):
        open_checkpoint(preset)
    (preset / "config.json").write_text(original)
    (preset / "model.weights.h5").write_bytes(b"truncated")
    with pytest.raises(InputError, match=r"model\.weights\.h5: not a valid HDF5 file"):
        open_checkpoint(preset).load_into(BertEncoder(open_checkpoint(preset).config))
    (preset / "model.weights.h5").unlink()
    with pytest.raises(InputError, match=r"has no model\.weights\.h5"):
        open_checkpoint(preset)


# --- HDF5 files that are damaged, or refer to other files ---


KERNEL = "layers/transformer_encoder/_feedforward_intermediate_dense/vars/0"


def external_storage(opened, shape, folder):
    (folder / "secret").write_bytes(b"secret" * 1000)
    storage = [(str(folder / "secret"), 0, 4 * int(np.prod(shape)))]
    opened.create_dataset(KERNEL, shape, "f4", external=storage)


def virtual_dataset(opened, shape, folder):
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource(str(folder / "other.h5"), "x", shape)
    opened.create_virtual_dataset(KERNEL, layout)


def external_link(opened, shape, folder):
    shutil.copy(CLASSIFIER / "model.weights.h5", folder / "other.h5")
    opened[KERNEL] = h5py.ExternalLink(str(folder / "other.h5"), KERNEL)


def of_type(kind):
    return lambda opened, shape, folder: opened.create_dataset(KERNEL, shape, kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (external_storage, f"{KERNEL} is empty or refers to other files"),
        (virtual_dataset, f"{KERNEL} is empty or refers to other files"),
        (external_link, "is missing"),
        (of_type(h5py.ref_dtype), "has type .*; expected one of float16"),
        (of_type(np.dtype([("a", "f4")])), "has type .*; expected one of float16"),
        (of_type("i4"), "has type int32; expected one of float16"),
    ],
)
def test_datasets_must_be_floats_in_the_file(preset, make, message):
    with h5py.File(preset / "model.weights.h5", "r+") as opened:
        shape = opened[KERNEL].shape
        del opened[KERNEL]
        make(opened, shape, preset.parent)
    check_rejected(preset, BertEncoder(open_checkpoint(preset).config), message)
