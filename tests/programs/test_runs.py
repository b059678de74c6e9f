"""Folders of runs, and the folder in which XLA's compiled programs are kept."""

import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from keras_bert.errors import InputError
from keras_bert.programs import runs
from keras_bert.programs.runs import CACHE_VARIABLE, check_output_dir, use_compilation_cache

FLAG = "--tf_xla_persistent_cache_directory="
COMPILE = """
from keras_bert.programs.runs import use_compilation_cache
use_compilation_cache()
import tensorflow as tf
function = tf.function(lambda x: tf.nn.softmax(x * x), jit_compile=True)
print(function(tf.linspace(0.0, 1.0, 8)).numpy().tobytes().hex())
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path) -> Path:
    """Sets a cache folder, and restores the variables that the function changes."""
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def used_folder() -> Path:
    use_compilation_cache()
    return Path(os.environ["TF_XLA_FLAGS"].removeprefix(FLAG))


def entry(folder: Path, name: str, content: bytes, age: float = 0) -> Path:
    path = folder / f"xla_compile_cache__{name}__XLA_CPU_JIT.pb"
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_the_folder_is_private_and_depends_on_flags(environment, monkeypatch):
    folder = used_folder()
    assert folder.parent == environment
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder / "jax")
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    assert used_folder() == folder
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert used_folder() != folder


def test_without_the_variable_it_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert used_folder().parent == tmp_path / "home" / "keras_bert" / "xla"


def test_an_empty_variable_keeps_nothing(monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "")
    use_compilation_cache()
    assert os.environ["TF_XLA_FLAGS"] == ""


def test_flags_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=0")
    use_compilation_cache()
    assert os.environ["TF_XLA_FLAGS"].startswith(f"--tf_xla_auto_jit=0 {FLAG}")
    monkeypatch.setenv("TF_XLA_FLAGS", f"{FLAG}/mine")
    use_compilation_cache()
    assert os.environ["TF_XLA_FLAGS"] == f"{FLAG}/mine"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("others can write", "other users can write to the folder"),
        ("full", "only 5 bytes are free"),
        ("a file", "File exists"),
        ("white space", "contains white space"),
    ],
)
def test_an_unusable_folder_is_not_used(environment, monkeypatch, caplog, problem, message):
    if problem == "others can write":
        used_folder().chmod(0o770)
        monkeypatch.setenv("TF_XLA_FLAGS", "")
    elif problem == "full":
        usage = namedtuple("usage", "free")(5)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    elif problem == "a file":
        environment.write_text("")
        message = "Not a directory"
    else:
        monkeypatch.setenv(CACHE_VARIABLE, str(environment / "with space"))
    with caplog.at_level("WARNING"):
        use_compilation_cache()
    assert os.environ["TF_XLA_FLAGS"] == ""
    assert message in caplog.text


def test_incomplete_entries_and_old_temporary_files_are_removed(environment, monkeypatch):
    folder = used_folder()
    whole = b"\x0a\x03abc\x10\x07"  # Field 1, "abc"; field 2, the number 7.
    kept = [entry(folder, "whole", whole), folder / "notes.txt"]
    kept[1].write_text("of the user")
    removed = [
        entry(folder, str(length), whole[:length]) for length in range(len(whole)) if length != 5
    ]
    for name, age in (("new.tmp", 0), ("old.tmp", 2 * 24 * 3600)):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (time.time() - age,) * 2)
    use_compilation_cache()
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in removed)
    assert (folder / "new.tmp").exists()
    assert not (folder / "old.tmp").exists()


def test_the_oldest_of_too_many_entries_are_removed(monkeypatch):
    folder = used_folder()
    content = b"\x0a\x62" + bytes(98)
    ages = {age: entry(folder, str(age), content, age) for age in (30, 10, 20)}
    monkeypatch.setattr(runs, "_MAX_BYTES", 250)
    use_compilation_cache()
    assert [age for age, path in sorted(ages.items()) if path.exists()] == [10, 20]


@pytest.mark.slow
def test_a_second_process_reads_the_program_that_the_first_one_compiled(environment, root):
    def run() -> str:
        command = [sys.executable, "-c", COMPILE]  # TensorFlow reads the flags once.
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    values = run()
    (entry,) = environment.glob("*/xla_compile_cache__*.pb")
    written = entry.stat().st_mtime_ns
    assert run() == values
    assert entry.stat().st_mtime_ns == written


def test_output_dir_that_overlaps_the_checkpoint_is_rejected(tmp_path):
    for folder in ("bert", "out/model", "bert/model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("bert")
    bert, out = f"{tmp_path}/bert", f"{tmp_path}/out"
    for start, place in (
        (bert, f"{tmp_path}/link"),
        (bert, f"{out}/../bert/"),
        (out, f"{out}/model"),
        (f"{out}/model", out),
    ):
        with pytest.raises(
            InputError, match=rf"--output_dir={place}: overlaps with --init_checkpoint={start};"
        ):
            check_output_dir(place, start)
    check_output_dir(out, bert)
    check_output_dir(f"{bert}/run", bert)
    check_output_dir(".", "")
