"""Host memory: the machine's memory, control group limits, and systems that report nothing."""

import pytest

from keras_bert.models.memory import available_memory


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


def test_without_limits_all_memory_of_the_machine_is_available(proc, tmp_path):
    group(tmp_path / "groups/outer", "max", 1000)
    assert available_memory(proc, tmp_path / "groups") == 5000 * 1024


def test_limit_of_every_enclosing_control_group_applies(proc, tmp_path):
    group(tmp_path / "groups/outer", 4000, 1000)
    assert available_memory(proc, tmp_path / "groups") == 3000
    group(tmp_path / "groups/outer/inner", 2000, 900, inactive=100)
    assert available_memory(proc, tmp_path / "groups") == 1200


def test_limit_applies_in_a_container_whose_control_group_is_the_root(proc, tmp_path):
    (proc / "self/cgroup").write_text("0::/\n")
    group(tmp_path / "groups", 4000, 5000)
    assert available_memory(proc, tmp_path / "groups") == 0


def test_memory_is_none_if_the_system_does_not_report_it(tmp_path):
    assert available_memory(tmp_path / "absent", tmp_path / "absent") is None
