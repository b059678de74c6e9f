"""Networks and batches that cannot fit in memory are rejected before they are allocated."""

from types import SimpleNamespace

import keras
import pytest

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertEncoder, memory
from keras_bert.models.memory import available_memory, check_batch_fits

SMALL = BertConfig(50, 16, 2, 2, 32, max_position_embeddings=24)


def test_number_of_weights_equals_that_of_the_encoder():
    assert BertEncoder(SMALL).count_params() == SMALL.num_encoder_weights


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 2 * 10**9, "num_attention_heads": 1},
        {"vocab_size": 2**31 - 1},
        {"num_hidden_layers": 1000, "hidden_size": 12_000},
    ],
)
def test_network_larger_than_the_memory_is_rejected(sizes):
    config = BertConfig(**{"vocab_size": 50} | sizes)
    for network in (BertEncoder, lambda config: BertClassifier(config, 2)):
        with pytest.raises(InputError, match=r"config: a model with hidden_size .* GB for its wei"):
            network(config)


def test_limit_is_the_available_memory(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * SMALL.num_encoder_weights)
    BertEncoder(SMALL)
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * SMALL.num_encoder_weights - 1)
    with pytest.raises(InputError, match=r"vocab_size 50, max_position_embeddings 24"):
        BertEncoder(SMALL)
    monkeypatch.setattr(memory, "available_memory", lambda: None)  # Unknown, as on macOS.
    BertEncoder(SMALL)


def test_batch_larger_than_the_memory_is_rejected_on_a_cpu(monkeypatch):
    base = BertConfig.from_json("base")
    monkeypatch.setattr(memory, "available_memory", lambda: 10**9)
    check_batch_fits(base, 128, 512, "--batch_size=128")
    with pytest.raises(
        InputError,
        match=r"--batch_size=4096: 4096 rows of 512 tokens need at least 19\.3 GB in each layer, "
        r"but 1\.0 GB of memory are available; expected fewer rows",
    ):
        check_batch_fits(base, 4096, 512, "--batch_size=4096")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["gpu:0"])
    check_batch_fits(base, 4096, 512, "--batch_size=4096")  # TensorFlow does not know the limit.


def test_limit_of_a_batch_on_accelerators_is_their_memory_with_jax(monkeypatch):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["gpu:0", "gpu:1"])
    monkeypatch.setattr(memory, "available_memory", lambda: 1)

    def check(limit):
        gpu = SimpleNamespace(memory_stats=lambda: limit and {"bytes_limit": limit})
        monkeypatch.setattr(jax, "local_devices", lambda: [gpu, gpu])
        check_batch_fits(BertConfig.from_json("base"), 4096, 512, "--batch_size=4096")

    check(None)
    check(40 * 10**9)
    with pytest.raises(InputError, match=r"19\.3 GB in each layer, but 8\.0 GB of mem"):
        check(4 * 10**9)


# --- memory of the host ---


@pytest.fixture
def proc(tmp_path):
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  5000 kB\n")
    (folder / "self/cgroup").write_text("4:memory:/old\n0::/outer/inner\n")
    return folder


def group(folder, limit, taken, inactive=None):
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{taken}\n")
    if inactive is not None:
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\n")


def test_available_memory_is_the_least_of_the_machine_and_all_control_groups(proc, tmp_path):
    groups = tmp_path / "groups"
    group(groups / "outer", "max", 1000)
    assert available_memory(proc, groups) == 5000 * 1024
    (groups / "outer/memory.max").write_text("4000\n")
    assert available_memory(proc, groups) == 3000
    group(groups / "outer/inner", 2000, 900, inactive=100)
    assert available_memory(proc, groups) == 1200
    (proc / "self/cgroup").write_text("0::/\n")  # In a container whose group is the root.
    group(tmp_path / "root", 4000, 5000)
    assert available_memory(proc, tmp_path / "root") == 0
    assert available_memory(tmp_path / "absent", tmp_path / "absent") is None  # Not reported.
