"""Shared fixtures: two logical CPU devices, the root, real data, tiny checkpoints, programs."""

import contextlib
import gc
import importlib.util
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import pytest

from tests import processes
from tests.disk import small_disk  # noqa: F401 (fixture)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# By default, XLA and LLVM spend most of a test's time optimizing code that runs for milliseconds.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
ROOT = Path(__file__).resolve().parent.parent
# Processes that tests start import this checkout, and other packages from where pytest found them.
_path = [str(ROOT), str(ROOT / "tests" / "site"), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _path))
# Shared by all tests and their processes, whose tiny models consist of the same computations.
os.environ.setdefault("KERAS_BERT_COMPILATION_CACHE", str(ROOT / "build" / "compilation_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["HF_HUB_OFFLINE"] = "1"  # A name that is no path is not looked for on the Hub.


def pytest_configure() -> None:
    """Splits the CPU into two devices before TensorFlow starts, so that any test can use both.

    Turns graph optimization off, as tests/site does in the processes that tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As in background jobs of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from keras_bert.programs.runs import use_compilation_cache

    use_compilation_cache()
    import tensorflow as tf

    from keras_bert.training.strategy import split_cpu

    split_cpu(2)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_finish() -> None:
    """Excludes the objects of all imported modules from garbage collections, which saves time."""
    gc.collect()
    gc.freeze()


# Fixtures of tests that start Keras on another backend or the libraries of .peers in
# separate processes. Each process takes ten seconds to import its libraries.
SLOW_FIXTURES = {"backend_python", "peers_python"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that use SLOW_FIXTURES as slow."""
    for item in items:
        if SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def root() -> Path:
    """Returns the repository's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Returns the folder of real public data next to the checkout, or skips the test without it."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real-data test: ../shared/data is not next to this checkout")
    return path


@pytest.fixture
def random_moment() -> random.Random:
    """Returns a random generator for the moment at which a test kills a process.

    Each run of a test has another seed, which pytest prints if the test fails. The environment
    variable KERAS_BERT_KILL_SEED sets the seed.
    """
    seed = int(os.environ.get("KERAS_BERT_KILL_SEED") or secrets.randbits(32))
    print(f"The moment of the kill has the seed KERAS_BERT_KILL_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def peers_python() -> Path:
    """Returns the Python of .peers; skips the test if it is missing."""
    python = ROOT / ".peers" / "bin" / "python"
    if not python.exists():
        pytest.skip("the environment with other libraries, .peers, is not installed")
    return python


@pytest.fixture(scope="session")
def backend_python() -> Callable[[str], str]:
    """Returns a function: backend -> a Python that has it; skips the test if there is none."""

    def find(backend: str) -> str:
        if importlib.util.find_spec(backend) is not None:
            return sys.executable
        peers = ROOT / ".peers" / "bin" / "python"
        if backend == "torch" and peers.exists():
            return str(peers)
        where = ", nor is .peers, the environment that has it" if backend == "torch" else ""
        pytest.skip(f"{backend} is not installed{where}")

    return find


@pytest.fixture(scope="session")
def make_checkpoint():
    """Returns a function: (folder, tokens besides special ones, sizes) -> a model's folder."""

    def make(folder: Path, tokens, network: str = "BertEncoder", user_tokens=(), **sizes) -> Path:
        import keras

        from keras_bert import models
        from keras_bert.checkpoints.hugging_face import save_model_directory
        from keras_bert.config import BertConfig
        from keras_bert.text.settings import TokenizerSettings, UserToken

        vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tokens]
        defaults = {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
        }
        config = BertConfig.from_dict(defaults | sizes | {"vocab_size": len(vocab)})
        keras.utils.set_random_seed(0)
        settings = TokenizerSettings(
            user_tokens=[UserToken(each, normalized=True) for each in user_tokens]
        )
        save_model_directory(folder, getattr(models, network)(config), vocab, settings)
        return folder

    return make


# File of a program -> the module that implements it.
PROGRAMS = {
    "run_pretraining.py": "keras_bert.programs.pretrain",
    "run_classifier.py": "keras_bert.programs.classify",
    "adapt.py": "keras_bert.programs.adapt",
    "run_squad.py": "keras_bert.programs.squad",
    "run_ner.py": "keras_bert.programs.ner",
    "run_embedding.py": "keras_bert.programs.embed",
    "run_fill_mask.py": "keras_bert.programs.fill_mask",
    "extract_features.py": "keras_bert.programs.extract_features",
    "export_model.py": "keras_bert.programs.export",
    "convert.py": "keras_bert.programs.convert",
    "build_vocab.py": "data_tools.build_vocab",
    "create_pretraining_data.py": "data_tools.create_pretraining_data",
    "inspect_tfrecords.py": "data_tools.inspect_tfrecords",
}


@pytest.fixture(scope="session")
def pretrained(make_checkpoint, tmp_path_factory):
    """Returns the folder of a pre-trained model with its heads and 32 positions."""
    words = ["good", "bad", "film", "book", "it", "is", "a", "##s", ".", "very"]
    # Large initial weights, so that few training steps are enough.
    sizes = {"max_position_embeddings": 32, "initializer_range": 0.2}
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    return make_checkpoint(folder, words, "BertPretrainer", **sizes)


@pytest.fixture(scope="session")
def run_program(root, tmp_path_factory):
    """Returns a function: (program, its arguments, flags, folder, ...) -> the finished process.

    The program runs in this process, unless it needs one of its own: for another Keras backend or
    other environment variables, for its own devices, or for standard input.
    """
    nothing = tmp_path_factory.mktemp("tfds")  # Data prepared by TensorFlow Datasets: none.

    def run(
        program: str,
        *arguments: str,
        cwd: Path = root,
        input: str | None = None,
        environment: Mapping[str, str] | None = None,
        **flags,
    ):
        argv = [str(root / program), *arguments, *(f"--{k}={v}" for k, v in flags.items())]
        variables = {"TFDS_DATA_DIR": str(nothing), **(environment or {})}
        alone = input is not None or set(variables) > {"TFDS_DATA_DIR"}
        if alone or "distribution_strategy" in flags:
            return processes.run(argv, cwd=cwd, env={**os.environ, **variables}, input=input)
        with contextlib.chdir(cwd), mock.patch.dict(os.environ, variables):
            return processes.call_here(PROGRAMS[program], argv)

    return run


@pytest.fixture(scope="session")
def write_records():
    """Returns a function that writes pre-training records of random tokens, in Google's format."""
    import numpy as np
    import tensorflow as tf

    from data_tools.tfrecords import encode_examples

    def example(rng: np.random.Generator, length: int, predictions: int, vocab_size: int) -> dict:
        real = int(rng.integers(length // 2, length + 1))
        masked = int(rng.integers(1, predictions + 1))
        ids = np.zeros([length], int)
        ids[:real] = rng.integers(5, vocab_size, real)
        positions, labels = np.zeros([2, predictions], int)
        positions[:masked] = np.sort(rng.choice(np.arange(1, real), masked, replace=False))
        labels[:masked] = rng.integers(5, vocab_size, masked)
        columns = np.arange(length)
        return {
            "input_ids": ids,
            "input_mask": columns < real,
            "segment_ids": (columns >= real // 2) & (columns < real),
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": (np.arange(predictions) < masked).astype(np.float32),
            "next_sentence_labels": [rng.integers(0, 2)],
        }

    def write(
        path: Path,
        count: int,
        length: int = 16,
        predictions: int = 3,
        vocab_size: int = 50,
        seed: int = 0,
    ) -> Path:
        rng = np.random.default_rng(seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        examples = [example(rng, length, predictions, vocab_size) for _ in range(count)]
        features = {name: np.array([each[name] for each in examples]) for name in examples[0]}
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in encode_examples(features):
                writer.write(record)
        return path

    return write


@pytest.fixture(scope="session")
def mirrored():
    """Returns a strategy with two devices, shared by all tests of a process.

    Strategies of one process share their collectives' keys. The first all-reduce of a second
    strategy would therefore conflict with the shapes of the first one's.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
