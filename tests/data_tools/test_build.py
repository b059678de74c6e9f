"""Tests that a local build writes the same bytes with any number of workers and after failures."""

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools import create_pretraining_data as build
from data_tools import shards
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
from keras_bert.errors import InputError
from tests import processes
from tests.data_tools.conftest import changes

SMALL = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2, num_shards=4)
# Two workers need several seconds, so that all kills come long before the end.
SLOW = replace(SMALL, dupe_factor=200, num_shards=64)


class RepeatingExecutor(ThreadPoolExecutor):
    """Runs every job twice, as a cluster that has lost the connection to a worker does."""

    def submit(self, function, *job):
        # One after the other: a cluster repeats a job in another process, with files of its own.
        return super().submit(lambda: [function(*job) for _ in range(2)][-1])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_whole_word_mask": True},
        {"ngram": 3, "next_sentence": "order"},
        {"pack": True},
        {"pack": True, "dynamic": True, "next_sentence": "none"},
        {"input_format": "parquet"},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_any_executor_writes_the_same_bytes(
    files, corpus, contents, monkeypatch, tmp_path, options
):
    if "input_format" in options:  # Several files, of which none is divided among the workers.
        for number in range(3):
            table = pa.table({"text": corpus(10, seed=number).split("\n\n")})
            parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
        files["input_file"] = str(tmp_path / "*.parquet")
    settings = replace(SMALL, **options)
    manifest = create_pretraining_data(**files, settings=settings, num_workers=1)
    assert ("pyarrow" in manifest["made_with"]) == ("input_format" in options)
    complete = contents(files["output_dir"])
    shutil.rmtree(files["output_dir"])
    monkeypatch.chdir(tmp_path)
    relative = {name: os.path.relpath(path) for name, path in files.items()}
    with RepeatingExecutor(2) as executor:
        create_pretraining_data(**relative, settings=settings, num_workers=2, executor=executor)
    assert contents(files["output_dir"]) == complete


def command(files, settings):
    """Returns the arguments of Python for the program with two workers."""
    flags = files | changes(settings) | {"num_workers": 2}
    program = ["-m", "keras_bert", "create-pretraining-data"]
    return [*program, *(f"--{name}={value}" for name, value in flags.items())]


def notes_of(files) -> list[str]:
    return sorted(path.name for path in Path(files["output_dir"]).glob(".building/*.tfrecord.json"))


def wait_for_shards(files, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(notes_of(files)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(process) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def finish(files, settings, monkeypatch) -> list[int]:
    """Runs the build in this process; returns the numbers of the shards that it made."""
    made = []
    make_shard = shards.make_shard

    def counted(index, *job):
        made.append(index)
        return make_shard(index, *job)

    monkeypatch.setattr(shards, "make_shard", counted)
    create_pretraining_data(**files, settings=settings, num_workers=1)
    monkeypatch.undo()
    return made


# {killed processes: exit code, and what the build prints}
ENDS = {
    "worker": (1, "error: a worker process died, possibly because it ran out of memory"),
    "all": (
        130,
        ": interrupted: work that is not saved yet is lost: run the same command again to resume\n",
    ),
    "build": (-signal.SIGKILL, ""),
}


@pytest.mark.slow
def test_killed_build_resumes_with_the_missing_shards(files, contents, monkeypatch, random_moment):
    """Kills a worker, interrupts all processes, as a terminal does, and kills the main process."""
    there = 0
    for victim in ("worker", "all", "build"):
        process = processes.start(command(files, SLOW), stderr=processes.PIPE)
        wait_for_shards(files, there + random_moment.randrange(1, 5))
        time.sleep(random_moment.uniform(0, 0.1))
        workers = workers_of(process)
        if victim == "all":
            for pid in (process.pid, *workers):
                os.kill(pid, signal.SIGINT)
        else:
            os.kill(workers[0] if victim == "worker" else process.pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
        code, message = ENDS[victim]
        assert process.returncode == code
        assert message in stderr
        assert "Traceback" not in stderr
        deadline = time.monotonic() + 60
        while any(os.path.exists(f"/proc/{pid}") for pid in workers):
            assert time.monotonic() < deadline, f"workers {workers} outlived their build"
            time.sleep(0.05)
        there = len(notes_of(files))
        assert 1 <= there < SLOW.num_shards
        left = [".building", ".building.lock"] if victim == "build" else [".building"]
        assert sorted(os.listdir(files["output_dir"])) == left  # no part of a dataset

    assert len(finish(files, SLOW, monkeypatch)) == SLOW.num_shards - there
    resumed = contents(files["output_dir"])
    shutil.rmtree(files["output_dir"])
    create_pretraining_data(**files, settings=SLOW, num_workers=1)
    assert contents(files["output_dir"]) == resumed


@pytest.mark.parametrize(
    ("moment", "missing"), [("shard", [1, 2, 3]), ("manifest", []), ("cleanup", [])]
)
def test_interrupted_build_makes_only_what_is_missing(
    files, monkeypatch, complete, contents, moment, missing
):
    kill_before(monkeypatch, files, moment)
    assert os.path.exists(files["output_dir"] + "/.building")
    if moment == "shard":
        assert os.listdir(files["output_dir"]) == [".building"]  # no part of a dataset
        with pytest.raises(InputError, match=r"unfinished dataset .*dupe_factor was 2, now 3"):
            create_pretraining_data(**files, settings=replace(SMALL, dupe_factor=3), num_workers=1)
    assert finish(files, SMALL, monkeypatch) == missing
    left = contents(files["output_dir"])
    left.pop(".building.lock", None)
    assert left == complete


def test_build_started_with_other_versions_is_not_resumed(files, monkeypatch, contents):
    """Rejects it, since the shards could differ, and keeps its files."""
    kill_before(monkeypatch, files, "shard")
    plan_file = Path(files["output_dir"], ".building/plan.json")
    plan = json.loads(plan_file.read_text())
    plan["made_with"]["numpy"] = "1.0.0"
    plan_file.write_text(json.dumps(plan))
    before = contents(files["output_dir"])
    difference = r": numpy was 1\.0\.0, now \d[^;]*; expected the same .*; to start again, remove "
    with pytest.raises(InputError, match="started with other package versions" + difference):
        create_pretraining_data(**files, settings=SMALL, num_workers=1)
    assert contents(files["output_dir"]) == before


def test_file_that_changes_while_it_is_read_is_rejected(files, monkeypatch):
    spill = build.spill.spill

    def append(*job):
        with open(files["input_file"], "a") as file:
            file.write("more\n")
        return spill(*job)

    monkeypatch.setattr(build.spill, "spill", append)
    with pytest.raises(InputError, match="the content changed while it was read"):
        create_pretraining_data(**files, settings=SMALL, num_workers=1)
    assert not os.path.exists(files["output_dir"])


def test_second_build_into_the_same_folder_is_rejected(files):
    with (
        build.locked_folder(files["output_dir"]),
        pytest.raises(InputError, match="another build is running in this folder"),
    ):
        create_pretraining_data(**files, settings=SMALL, num_workers=1)


def kill_before(monkeypatch, files, moment):
    """Ends a build, as a kill would, before its second shard, its manifest or its cleanup."""
    module, name, is_last = {
        "shard": (shards, "make_shard", lambda index, *_: index == 1),
        "manifest": (build.files, "write_json", lambda path, _: "manifest" in str(path)),
        "cleanup": (build.shutil, "rmtree", lambda *_, **__: True),
    }[moment]
    function = getattr(module, name)

    def dies(*arguments, **options):
        if is_last(*arguments):
            raise KeyboardInterrupt
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, dies)
    with pytest.raises(KeyboardInterrupt):
        create_pretraining_data(**files, settings=SMALL, num_workers=1)
    monkeypatch.undo()


@pytest.fixture
def complete(files, contents):
    """Returns the dataset of an uninterrupted build; leaves the output folder as it was."""
    create_pretraining_data(**files, settings=SMALL, num_workers=1)
    made = contents(files["output_dir"])
    shutil.rmtree(files["output_dir"])
    return made


# --- a full disk, and flushed files ---


LARGER = replace(SMALL, dupe_factor=10)


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 1 << 18])
def test_records_on_a_full_disk_are_an_error_and_the_same_command_completes_them(
    small_disk, files, contents, free
):
    """The disk is full from the start, or while the temporary files or the shards are written."""
    create_pretraining_data(**files, settings=LARGER, num_workers=1)
    expected = contents(files["output_dir"])
    folder = small_disk.path / "records"
    small_disk.fill(free)
    with pytest.raises(InputError, match=r"cannot be written \(.*[Nn]o space left"):
        create_pretraining_data(
            **files | {"output_dir": str(folder)}, settings=LARGER, num_workers=1
        )
    assert not (folder / "manifest.json").exists()
    small_disk.release()
    create_pretraining_data(**files | {"output_dir": str(folder)}, settings=LARGER, num_workers=1)
    assert contents(folder) == expected


def test_records_are_flushed_before_and_after_their_renames(files, monkeypatch):
    """A power failure leaves no manifest, or a complete dataset."""
    flushed, moved = [], []
    fsync, replace_file = os.fsync, os.replace

    def flush(descriptor):
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def move(source, target):
        assert str(source) in [*flushed, *moved]
        moved.append(str(target))
        flushed.append("a move")
        replace_file(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", move)
    create_pretraining_data(**files, settings=SMALL, num_workers=1)
    folder = files["output_dir"]
    names = ["vocab.txt", *(f"records-0000{i}-of-00004.tfrecord" for i in range(4))]
    assert moved[-6:] == [f"{folder}/{name}" for name in [*names, "manifest.json"]]
    assert flushed[-2:] == ["a move", folder]
    documents = [path for path in flushed if "/documents-" in path]
    assert flushed.index(documents[-1]) < flushed.index("a move")
