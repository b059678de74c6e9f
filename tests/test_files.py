"""Tests that files and folders are written completely or not at all, with one-line errors."""

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from keras_bert import files
from keras_bert.errors import InputError, InUse
from keras_bert.files import (
    atomic_path,
    locked,
    read_json,
    read_lines,
    read_ready_lines,
    write_json,
)


def full(*_):
    raise OSError(28, "No space left on device")


def save_folder(path, content):
    with atomic_path(path) as partial:
        partial.mkdir()
        (partial / "file").write_text(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b'{"a":' + b"[" * 100_000, "cannot be read as JSON: nested too deeply"),
        (b"[1]", "contains a list; expected a JSON object"),
        (b'{"\xff', "is not JSON: not UTF-8 at byte 2"),
        (None, "cannot be read: No such file"),
    ],
)
def test_invalid_json_is_reported_with_its_file(tmp_path, content, message):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"run\.json: {message}"):
        read_json(tmp_path / "run.json")


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_failed_write_keeps_the_previous_file(tmp_path, monkeypatch, step):
    write_json(tmp_path / "a.json", {"a": 1})
    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match=r"a\.json: cannot be written \(No space left on device\)"):
        write_json(tmp_path / "a.json", {"a": 2})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_only_listed_exceptions_are_reported_as_failed_writes(tmp_path):
    with (
        pytest.raises(InputError, match=r"a: cannot be written \(broken\)"),
        atomic_path(tmp_path / "a", failures=(KeyError, RuntimeError)),
    ):
        raise RuntimeError("broken")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a"):
        raise RuntimeError("a defect stays one")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("in_two_steps", [False, True])
def test_all_is_flushed_before_the_new_name_and_the_name_before_the_old_folder_is_deleted(
    tmp_path, monkeypatch, in_two_steps
):
    """A kill or a power failure leaves the old or the new folder; the old one is then deleted."""
    save_folder(tmp_path / "m", "old")
    calls = []

    def trace(module, name, place):
        function = getattr(module, name)

        def call(*arguments, **options):
            path = place(arguments[0]).replace(f".m.{files._HOST}.{os.getpid()}.partial", "partial")
            calls.append((name, os.path.relpath(path, tmp_path)))
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    if in_two_steps:  # As on a file system without RENAME_EXCHANGE.
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    trace(os, "fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    for module, name in ((files, "_exchange"), (os, "rename"), (os, "replace")):
        trace(module, name, str)
    trace(files.shutil, "rmtree", str)
    save_folder(tmp_path / "m", "new")
    assert (tmp_path / "m" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["m"]
    flushed = [("fsync", "partial/file"), ("fsync", "partial"), ("_exchange", "partial")]
    if in_two_steps:
        renamed = [("rename", "m"), ("rename", "partial"), ("fsync", ".")]
        assert calls == [*flushed, *renamed, ("rmtree", ".m.replaced"), ("fsync", ".")]
    else:
        assert calls == [*flushed, ("fsync", "."), ("rmtree", "partial")]


def test_folder_lost_between_two_renames_is_restored_by_the_next_write(tmp_path):
    save_folder(tmp_path / ".m.replaced", "old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "m"):
        raise RuntimeError("the next write fails")
    assert (tmp_path / "m" / "file").read_text() == "old"


def test_link_to_a_folder_is_replaced_and_its_target_kept(tmp_path):
    save_folder(tmp_path / "target", "old")
    (tmp_path / "m").symlink_to("target")
    save_folder(tmp_path / "m", "new")
    assert (tmp_path / "m" / "file").read_text() == "new"
    assert (tmp_path / "target" / "file").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["m", "target"]


def test_folder_that_cannot_be_renamed_keeps_the_previous_one(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    save_folder(tmp_path / "m", "old")
    rename = os.rename

    def fails(source, target):
        if str(source).endswith(".partial"):
            full()
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(InputError, match="m: cannot be written"):
        save_folder(tmp_path / "m", "new")
    assert (tmp_path / "m" / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["m"]


def test_files_left_by_a_killed_writer_are_removed_by_the_next(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = f"{files._HOST}.{ended.pid}.partial"
    (tmp_path / f".m.{dead}").mkdir()
    (
        tmp_path / f".m.{files._HOST}.{os.getpid()}.partial"
    ).touch()  # an earlier process with our process id
    (tmp_path / ".m.0123abcd.7.partial").mkdir()  # from another machine, long ago
    os.utime(tmp_path / ".m.0123abcd.7.partial", (0, 0))
    (tmp_path / ".m.replaced").mkdir()  # killed between the two renames
    (tmp_path / f".m.json.{dead}").touch()  # of another file
    save_folder(tmp_path / "m", "new")
    assert sorted(os.listdir(tmp_path)) == [f".m.json.{dead}", "m"]


def test_files_being_written_by_another_process_are_kept(tmp_path):
    here, elsewhere = f".m.{files._HOST}.{os.getppid()}.partial", ".m.0123abcd.7.partial"
    for name in (here, elsewhere):
        (tmp_path / name).mkdir()
    save_folder(tmp_path / "m", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([here, elsewhere, "m"])


# --- locks ---


HOLD = """
import sys
from keras_bert.files import locked
with locked(sys.argv[1], "taken"):
    print("inside", flush=True)
    sys.stdin.read()
"""


def test_lock_is_exclusive_until_its_holder_ends(tmp_path, root):
    path = tmp_path / "new" / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"inside\n"
    name = rf"^taken \(process {holder.pid} on {socket.gethostname()}\); run the same command again"
    with pytest.raises(InUse, match=name), locked(path, "taken"):
        pass
    assert path.exists(), "its holder's"
    holder.kill()
    holder.communicate()
    assert path.exists(), "left by the kill"
    with locked(path, "taken"):
        assert path.exists()
    assert not path.exists()


def test_file_deleted_while_it_was_locked_is_not_a_lock(tmp_path, monkeypatch):
    """The previous holder deleted the file.

    The next process creates another file, so both processes would hold the lock.
    """
    flock = fcntl.flock

    def late(descriptor, operation):
        os.unlink(tmp_path / ".lock")
        (tmp_path / ".lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InUse, match=r"^taken; run"), locked(tmp_path / ".lock", "taken"):
        pass
    assert (tmp_path / ".lock").exists(), "another process's"


def test_path_that_cannot_be_written_or_locked_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"file/\.lock: cannot be written \(.*exists"),
        locked(tmp_path / "file" / ".lock", "taken"),
    ):
        pass

    def fail(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        pytest.raises(InputError, match=r"\.lock: cannot be locked \(No locks available\)"),
        locked(tmp_path / ".lock", "taken"),
    ):
        pass


# --- lines of text ---


def test_lines_end_only_at_line_feeds_and_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffa\u2028b\r\r\n\nc\rd\x85\u00a0\r\n\r\ne\r".encode())
    expected = [(1, "a\u2028b"), (2, ""), (3, "c\rd\x85\u00a0"), (4, ""), (5, "e")]
    assert list(read_lines(path)) == expected


def test_lines_that_are_ready_are_read_at_once(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reader))
    lists = read_ready_lines("-")
    os.write(writer, b"a\nb\n")
    assert next(lists) == [(1, "a"), (2, "b")]
    os.write(writer, b"c\n\nd")
    os.close(writer)
    assert [*lists] == [[(3, "c"), (4, "")], [(5, "d")]]
