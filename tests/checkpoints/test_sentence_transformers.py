"""Tests reading lengths, pooling and normalization from the files of sentence-transformers."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.sentence_transformers import read_sentence_transformer
from keras_bert.errors import InputError
from keras_bert.models import BertEncoder
from keras_bert.server.api_formats import embedding_model
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from tests.checkpoints.conftest import edit

MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
TEXTS = ["a good film .", "", f"{'very ' * 40}good", "Book it is bad"]
LAYOUTS = ("new", "old", "oldest")  # Of versions of sentence-transformers.


def write_modules(folder: Path, modules: list, pooling: dict) -> None:
    """Writes modules.json and the config of the pooling."""
    listed = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.fixture
def directory(pretrained, tmp_path: Path) -> Path:
    """Returns a directory with the pooling mean, as written by sentence-transformers 5.4."""
    folder = tmp_path / "st"
    TextEmbedder.from_pretrained(pretrained).save_pretrained(folder)
    write_modules(folder, MODULES[:2], {"pooling_mode": "mean"})
    edit(folder / "tokenizer_config.json", model_max_length=8)
    edit(folder / "config.json", keras_bert=None)
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)
    return folder


def write_dense(folder: Path, index: int, sizes: tuple[int, int], **config) -> dict:
    """Adds a Dense module with random weights, and returns these."""
    path = folder / f"{index}_Dense"
    path.mkdir()
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"path": path.name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    random = np.random.default_rng(index)
    weights = {"linear.weight": random.normal(size=sizes[::-1]).astype(np.float32)}
    if config.get("bias", True):
        weights["linear.bias"] = random.normal(size=sizes[1]).astype(np.float32)
    save_file(weights, path / "model.safetensors")
    names = {"in_features": sizes[0], "out_features": sizes[1], "bias": True}
    default = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (path / "config.json").write_text(json.dumps(names | default | config))
    return weights


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (MODULES, {"pooling_mode": "max"}, r"1_Pooling/config\.json: the pooling is max; expected"),
        (MODULES, {"pooling_mode": "mean", "include_prompt": False}, "include_prompt is false"),
        (
            [*MODULES[:2], ("2_LSTM", "LSTM"), ("3_Dense", "Dense")],
            {"pooling_mode": "mean"},
            r"modules\.json: the modules are Transformer, Pooling, LSTM, Dense; expected",
        ),
    ],
)
def test_unsupported_modules_are_rejected(directory, modules, pooling, message):
    write_modules(directory, modules, pooling)
    with pytest.raises(InputError, match=message):
        TextEmbedder.from_pretrained(directory)
    BertEncoder.from_pretrained(directory)  # needs none of them


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"activation_function": "my.Swish"},
            "activation_function is 'my.Swish'; expected a Dense",
        ),
        ({"use_residual": True}, "use_residual is True; expected"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"out_features": None}, "out_features is missing"),
        ({"bias": False, "out_features": 5}, r"dense.0.weight has shape \[4, 16\], expected \[5"),
        ({}, "has no model.safetensors; expected the weights of the Dense module"),
    ],
)
def test_unsupported_dense_module_is_rejected(directory, config, message):
    write_dense(directory, 2, (16, 4))
    edit(directory / "2_Dense" / "config.json", **config)
    if not config:
        (directory / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=message):
        TextEmbedder.from_pretrained(directory)


def test_vector_of_the_pooling_passes_the_dense_modules(directory, tmp_path: Path):
    mean = TextEmbedder.from_pretrained(directory).predict(TEXTS)["mean"]
    first = write_dense(directory, 2, (16, 6))
    linear = "torch.nn.modules.linear.Identity"
    second = write_dense(directory, 3, (6, 4), activation_function=linear, bias=False)
    expected = np.tanh(mean @ first["linear.weight"].T + first["linear.bias"])
    expected = expected @ second["linear.weight"].T
    embedder = TextEmbedder.from_pretrained(directory)
    np.testing.assert_allclose(embedder.predict(TEXTS)["mean"], expected, atol=1e-5)
    vectors = embedder.prediction_model(embedder.tokenizer(TEXTS, max_seq_length=8))["vectors"]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    embedder.save_pretrained(tmp_path / "saved")
    saved = keras_bert.load(tmp_path / "saved")
    np.testing.assert_allclose(saved.predict(TEXTS)["mean"], expected, atol=1e-5)
    embedder.export(tmp_path / "export" / "1")
    served = keras_bert.load(tmp_path / "export" / "1").predict(TEXTS)
    np.testing.assert_allclose(served["mean"], expected, atol=1e-5)
    assert served["cls"].shape == (4, 16)
    info = json.loads((tmp_path / "export" / "1" / "export.json").read_text())
    assert embedding_model(info)[:4] == ("mean", 4, (4,), False)
    assert (info["max_seq_length"], info["pooling"], info["normalize"]) == (8, "mean", False)
    card = (tmp_path / "export" / "1" / "README.md").read_text()
    assert "sentence-transformers uses the output `mean`" in card
    with pytest.raises(InputError, match="format='onnx': the model has Dense modules"):
        embedder.export(tmp_path / "onnx" / "1", format="onnx")


def test_fit_trains_the_dense_modules(directory, tmp_path: Path):
    weights = write_dense(directory, 2, (16, 4))
    embedder = TextEmbedder.from_pretrained(directory)
    pairs = (["good film", "bad film", "a book", "very"], ["good", "bad", "book", "a"])
    embedder.fit(
        pairs,
        batch_size=4,
        learning_rate=1e-2,
        gradient_accumulation_steps=2,
        verbose=0,
        jit_compile=False,
        callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "last.keras")],
    )
    embedder.save_pretrained(tmp_path / "saved")
    trained = load_file(tmp_path / "saved" / "2_Dense" / "model.safetensors")
    assert trained.keys() == weights.keys()
    for name, value in weights.items():
        assert not np.allclose(trained[name], value)
    restored = keras.models.load_model(tmp_path / "last.keras")
    vectors = restored(embedder.tokenizer(TEXTS, max_seq_length=8))["vectors"]
    np.testing.assert_allclose(vectors, embedder.predict(TEXTS)["mean"], atol=1e-5)


def test_prompts_are_put_before_texts(directory, tmp_path: Path):
    plain = TextEmbedder.from_pretrained(directory)
    prompts = {"query": "a good ", "passage": "bad ", "document": None}
    file = directory / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "query"}))
    expected = {
        name: plain.predict([(prompts[name] or "") + text for text in TEXTS])["mean"]
        for name in prompts
    }
    TextEmbedder.from_pretrained(directory).save_pretrained(tmp_path / "saved")
    for folder in (directory, tmp_path / "saved"):
        embedder = TextEmbedder.from_pretrained(folder)
        np.testing.assert_allclose(embedder.predict(TEXTS)["mean"], expected["query"], atol=1e-6)
        for name, vectors in expected.items():
            found = embedder.predict(TEXTS, prompt_name=name)["mean"]
            np.testing.assert_allclose(found, vectors, atol=1e-6)
        with pytest.raises(
            InputError, match="prompt_name='q': expected one of query, passage, doc"
        ):
            embedder.predict(TEXTS, prompt_name="q")
    embedder.export(tmp_path / "export" / "1")
    served = keras_bert.load(tmp_path / "export" / "1")
    np.testing.assert_allclose(served.predict(TEXTS)["mean"], expected["query"], atol=1e-5)
    with pytest.raises(InputError, match="the export puts the prompt 'query' before each text"):
        served.predict(TEXTS, prompt_name="passage")
    with pytest.raises(InputError, match="prompt_name='query': expected one of None, because"):
        plain.predict(TEXTS, prompt_name="query")


@pytest.mark.parametrize(
    "config", [{"prompts": ["a"]}, {"prompts": {"a": 1}}, {"default_prompt_name": "query"}]
)
def test_invalid_prompts_are_rejected(directory, config):
    file = directory / "config_sentence_transformers.json"
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config_sentence_transformers\.json: "):
        TextEmbedder.from_pretrained(directory)


def test_training_uses_no_prompt(directory):
    file = directory / "config_sentence_transformers.json"
    pairs = (["good film", "bad film"], ["good", "bad"])
    losses = []
    for name in (None, "query"):
        config = {"prompts": {"query": "very bad film "}, "default_prompt_name": name}
        file.write_text(json.dumps(config))
        embedder = TextEmbedder.from_pretrained(directory)
        options = {"batch_size": 2, "seed": 0, "verbose": 0, "jit_compile": False}
        losses.append(embedder.fit(pairs, **options).history["loss"])
    assert losses[0] == losses[1]


def test_length_is_that_of_the_tokenizer_since_5_4(directory, tmp_path: Path):
    lengths = []
    for length in (8, 64, 10**30, None):
        edit(directory / "tokenizer_config.json", model_max_length=length)
        lengths.append(TextEmbedder.from_pretrained(directory).settings.max_seq_length)
    assert lengths == [8, 32, 32, 32]  # The model has 32 positions.
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    assert TextEmbedder.from_pretrained(directory).settings.max_seq_length == 12


def test_texts_are_lower_cased_before_the_tokenizer(directory, tmp_path: Path):
    texts = ["GOOD Film", "good film", "Café"]
    edit(directory / "tokenizer_config.json", do_lower_case=False)
    (directory / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    TextEmbedder.from_pretrained(directory).save_pretrained(tmp_path / "saved")
    for folder in (directory, tmp_path / "saved"):
        embedder = TextEmbedder.from_pretrained(folder)
        ids = embedder.tokenizer.tokenize(texts).to_list()
        assert ids[0] == ids[1]
        assert embedder.tokenizer.unk_token_id not in ids[0]
        assert not embedder.tokenizer.settings.strips_accents


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", r"modules\.json"),
        ('[{"type": "Pooling"}]', r"modules\.json.* has no 'path'"),
        ('[{"type": "models.Pooling", "path": "/etc"}]', "the path '/etc'; expected a folder in"),
        ('[{"type": "models.Pooling", "path": "a/../../b"}]', r"the path 'a/\.\./\.\./b'; expec"),
    ],
)
def test_invalid_list_of_modules_is_rejected(content: str, message: str, tmp_path: Path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_sentence_transformer(tmp_path)


# --- directories that sentence-transformers writes, and its outputs ---

QUERY = f"{'good ' * 13}film"
PAIRS = [
    ("a good film .", "it is good"),
    ("bad", ""),
    # Both texts are truncated, to an odd number of tokens.
    (QUERY, f"{'very ' * 15}bad"),
    (f"{'very ' * 15}bad", QUERY),
    ("Book it is unknown", f"{'bad ' * 40}good"),
]
CROSS_ENCODERS = [f"{name}_{layout}" for name in ("sigmoid", "linear") for layout in LAYOUTS]


@pytest.fixture(scope="module")
def compute(run_in_peers, tmp_path_factory):
    """Returns a function that runs golden/make_sentence_transformers.py, and returns its outputs.

    Its arguments are a file for the outputs, or a folder that gets them and new directories, and
    the directories of models.
    """

    def run(out: Path, *directories: Path) -> dict[str, np.ndarray]:
        inputs = tmp_path_factory.mktemp("inputs") / "inputs.json"
        inputs.write_text(json.dumps({"texts": TEXTS, "pairs": PAIRS}))
        run_in_peers("make_sentence_transformers.py", inputs, out, *directories)
        return dict(np.load(out if out.suffix else out / "outputs.npz"))

    return run


@pytest.fixture(scope="module")
def made(pretrained, compute, tmp_path_factory):
    """Returns a folder with directories of all layouts, and their outputs."""
    folder = tmp_path_factory.mktemp("made") / "out"
    return folder, compute(folder, pretrained)


def test_vectors_are_those_of_sentence_transformers_in_all_layouts(made):
    folder, outputs = made
    vectors = {name: values for name, values in outputs.items() if name not in CROSS_ENCODERS}
    with_prompt = vectors.pop("prompts_query")
    assert len(vectors) == 14
    for name, expected in vectors.items():
        if name.startswith("max"):
            with pytest.raises(InputError, match=r"the pooling is .*max"):
                TextEmbedder.from_pretrained(folder / name)
            continue
        embedder = TextEmbedder.from_pretrained(folder / name)
        pooling = embedder.settings.pooling
        np.testing.assert_allclose(embedder.predict(TEXTS)[pooling], expected, atol=1e-5)
        if name == "prompts_new":
            found = embedder.predict(TEXTS, prompt_name="query")[pooling]
            np.testing.assert_allclose(found, with_prompt, atol=1e-5)


def test_cross_encoders_of_all_layouts_are_rerankers(made, tmp_path: Path):
    folder, outputs = made
    for name in CROSS_ENCODERS:
        expected = outputs[name]
        reranker = keras_bert.load(folder / name)
        assert reranker.settings.problem_type == "reranking"
        assert reranker.settings.max_seq_length == 24
        np.testing.assert_allclose(reranker.predict(PAIRS)["score"], expected, atol=1e-5)
        convert(folder / name, tmp_path / name)
        converted = keras_bert.load(tmp_path / name).predict(PAIRS[:2])
        np.testing.assert_allclose(converted["score"], expected[:2], atol=1e-5)


def test_sentence_transformers_opens_saved_models(made, compute, tmp_path: Path):
    folder, outputs = made
    names = ("two_dense_new", "default_prompt_old", "truncated_oldest", "sigmoid_new", "linear_new")
    for name in names:
        keras_bert.load(folder / name).save_pretrained(tmp_path / name)
    theirs = compute(tmp_path / "theirs.npz", *(tmp_path / name for name in names))
    for name in names:
        np.testing.assert_allclose(theirs[name], outputs[name], atol=1e-5)


MARK = {"model_type": "CrossEncoder"}


@pytest.mark.parametrize(
    ("modules", "file", "changes", "message"),
    [
        (
            ["a.Transformer"],
            "config.json",
            {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}},
            "config.json: activation_fn is 'torch.nn.Tanh'; expected one of to",
        ),
        (
            ["a.Transformer"],
            "config_sentence_transformers.json",
            MARK | {"default_prompt_name": "query"},
            "default_prompt_name is 'query'; expected null for a CrossEncoder",
        ),
        (
            ["a.Transformer", "a.LogitScore"],
            "config_sentence_transformers.json",
            MARK,
            "the modules of a CrossEncoder are Transformer, LogitScore; expected Transformer",
        ),
    ],
)
def test_unsupported_cross_encoder_is_rejected(
    pretrained, modules, file, changes, message, tmp_path
):
    reranker = TextClassifier.from_pretrained(pretrained, problem_type="reranking")
    reranker.save_pretrained(tmp_path / "saved")
    listed = [{"type": kind, "path": ""} for kind in modules]
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(listed))
    edit(tmp_path / "saved" / file, **changes)
    with pytest.raises(InputError, match=message):
        TextClassifier.from_pretrained(tmp_path / "saved")
