"""Tests that a build on Apache Beam writes the same bytes as a local build.

Beam has its own environment (`make beam`). Tests that need Beam run it there in another process.
"""

import importlib.util
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from data_tools.building import local_build, shards
from data_tools.create_pretraining_data import Runner, create_pretraining_data
from data_tools.settings import Settings
from keras_bert.common.errors import InputError

SMALL = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2, num_shards=4)

# Reads a list of builds as JSON and runs them one after the other in one process. "before" and
# "before_shards" are code that runs before a build and before its shards are made. disk:// is this
# machine's disk, accessed as a file system with a scheme like those of the clouds: any file access
# that bypasses Beam fails.
SCRIPT = """
import json, sys
from apache_beam.io.localfilesystem import LocalFileSystem
from data_tools.building import beam_shards, versions
from data_tools.create_pretraining_data import Runner, create_pretraining_data
from data_tools.settings import Settings
from keras_bert.common.errors import InputError

class Disk(LocalFileSystem):
    @classmethod
    def scheme(cls):
        return "disk"

    def join(self, base, *paths):
        return "/".join([base, *paths])

    def _list(self, folder):
        for file in super()._list(here(folder)):
            file.path = "disk:/" + file.path
            yield file

def here(path):
    return path.replace("disk://", "/").replace("//", "/")

def there(name):
    method = getattr(LocalFileSystem, name)
    return lambda self, *paths, **options: method(
        self, *[[here(p) for p in path] if isinstance(path, list) else here(path)
                for path in paths], **options)

for name in ("mkdirs", "create", "open", "rename", "exists", "size", "metadata"):
    setattr(Disk, name, there(name))
Disk.delete = lambda self, paths: [__import__("shutil").rmtree(here(path)) if path.endswith("/")
                                   else __import__("os").remove(here(path)) for path in paths]

make_shards, check_worker = beam_shards.make_shards, versions.check_worker

class Stopped(Exception):
    pass

def stop():
    raise Stopped

def edit(path):
    text = open(path).read()
    open(path, "w").write(text.replace(" da", " di"))

def launch_with_another_numpy():
    versions.check_worker = lambda made_with: check_worker(made_with | {"numpy": "1.0.0"})

for job in json.load(sys.stdin):
    code = job.pop("before_shards", "")
    beam_shards.make_shards = lambda *plan, code=code: (exec(code, globals()), make_shards(*plan))
    versions.check_worker = check_worker
    exec(job.pop("before", ""))
    settings = Settings(**job.pop("settings"))
    expected_error = job.pop("expected_error", None)
    try:
        create_pretraining_data(**job, settings=settings, runner=Runner("DirectRunner"))
        assert not expected_error
    except Stopped:
        pass
    except InputError as error:
        assert expected_error and expected_error in str(error), error
"""


@pytest.fixture
def build_on_beam(beam_python, root):
    """Returns a function that runs builds, given as keyword arguments, in one Beam process."""

    def run(*jobs: dict) -> None:
        jobs = [job | {"settings": job["settings"].to_dict()} for job in jobs]
        done = subprocess.run(
            [beam_python, "-c", SCRIPT],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            timeout=900,
            cwd=root,
        )
        assert done.returncode == 0, done.stderr

    return run


def test_beam_build_equals_local_build(folder, tmp_path, contents, build_on_beam):
    """Compares shards, manifest and vocabulary for every kind of dataset, in one process."""
    kinds = [
        replace(SMALL, num_shards=0),  # both choose the same number
        replace(SMALL, num_shards=50),  # some shards have no document
        replace(SMALL, next_sentence="order", do_whole_word_mask=True, ngram=2, pack=True),
        replace(SMALL, next_sentence="none", dynamic=True),
    ]
    jobs = [
        folder | {"output_dir": str(tmp_path / f"beam{number}"), "settings": settings}
        for number, settings in enumerate(kinds)
    ]
    build_on_beam(*jobs)
    for number, settings in enumerate(kinds):
        folder["output_dir"] = str(tmp_path / f"local{number}")
        create_pretraining_data(**folder, settings=settings, num_workers=1)
        assert contents(tmp_path / f"beam{number}") == contents(folder["output_dir"])


@pytest.mark.slow
def test_beam_build_on_several_processes_equals_local_build(
    folder, contents, beam_python, root, tmp_path
):
    create_pretraining_data(**folder, settings=SMALL, num_workers=1)
    local = contents(folder["output_dir"])
    flags = folder | SMALL.to_dict() | {"output_dir": str(tmp_path / "beam")}
    done = subprocess.run(
        [
            beam_python,
            "-m",
            "data_tools.create_pretraining_data",
            *(f"--{name}={value}" for name, value in flags.items()),
            "--runner=DirectRunner",
            "--",
            "--direct_running_mode=multi_processing",
            "--direct_num_workers=2",
        ],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    assert "malformed or too long: 1 undecodable byte;" in done.stderr
    assert contents(tmp_path / "beam") == local


def test_one_runner_resumes_the_build_of_another(
    folder, tmp_path, contents, build_on_beam, monkeypatch
):
    create_pretraining_data(**folder, settings=SMALL, num_workers=1)
    complete = contents(folder["output_dir"])

    make_shard = shards.make_shard

    def dies_at_the_third(job):
        if job.index == 2:
            raise KeyboardInterrupt
        return make_shard(job)

    started_here = folder | {"output_dir": str(tmp_path / "here")}
    started_there = folder | {"output_dir": str(tmp_path / "there")}
    monkeypatch.setattr(shards, "make_shard", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        create_pretraining_data(**started_here, settings=SMALL, num_workers=1)
    monkeypatch.undo()
    first = Path(started_here["output_dir"], ".building/records-00000-of-00004.tfrecord")
    inode = first.stat().st_ino

    build_on_beam(
        started_here | {"settings": SMALL},
        started_there | {"settings": SMALL, "before_shards": "stop()"},
    )
    assert contents(started_here["output_dir"]) == complete
    assert Path(started_here["output_dir"], first.name).stat().st_ino == inode  # was not rebuilt

    assert Path(started_there["output_dir"], ".building/plan.json").exists()
    create_pretraining_data(**started_there, settings=SMALL, num_workers=1)
    assert contents(started_there["output_dir"]) == complete


def test_files_on_another_file_system(folder, tmp_path, contents, build_on_beam):
    """Starts, finishes and repeats a build whose input, vocabulary and output are on disk://."""
    create_pretraining_data(**folder, settings=SMALL, num_workers=1)
    complete = contents(folder["output_dir"])
    elsewhere = {name: f"disk:/{path}" for name, path in folder.items()}
    elsewhere["output_dir"] += "-elsewhere"
    job = elsewhere | {"settings": SMALL}
    build_on_beam(job | {"before_shards": "stop()"}, job)
    leftover = Path(folder["output_dir"] + "-elsewhere", ".building/plan.json")
    leftover.parent.mkdir()
    leftover.touch()  # as after a kill during the final cleanup
    build_on_beam(job)
    made = contents(folder["output_dir"] + "-elsewhere")
    manifest = json.loads(made.pop("manifest.json"))
    expected = json.loads(complete.pop("manifest.json"))
    assert made == complete
    assert manifest["shards"] == expected["shards"]
    assert manifest["inputs"][0]["file"] == elsewhere["input_file"] + "/0.txt"


def test_missing_or_truncated_shard_is_rebuilt(folder, tmp_path, contents, build_on_beam):
    """Starts a build locally, deletes or truncates some shards, and finishes it on Beam."""
    create_pretraining_data(**folder, settings=SMALL, num_workers=1)
    complete = contents(folder["output_dir"])
    started = folder | {"output_dir": str(tmp_path / "started")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_build, "_finish", lambda *_: None)
        with pytest.raises(TypeError):
            create_pretraining_data(**started, settings=SMALL, num_workers=1)
    building = Path(started["output_dir"], ".building")
    assert len(list(building.glob("*.tfrecord.json"))) == 4
    building.joinpath("records-00001-of-00004.tfrecord").unlink()
    os.truncate(building / "records-00002-of-00004.tfrecord", 100)
    kept = building.joinpath("records-00000-of-00004.tfrecord")
    kept.rename(building.parent / kept.name)  # as after a kill during the final moves
    inode = (building.parent / kept.name).stat().st_ino
    build_on_beam(started | {"settings": SMALL})
    assert contents(started["output_dir"]) == complete
    assert (building.parent / kept.name).stat().st_ino == inode


def test_corpus_without_words_leaves_no_files_on_another_file_system(
    files, tmp_path, build_on_beam
):
    Path(files["input_file"]).write_text("\u200b\n\u200b\n\n\u200b\n")
    job = files | {"output_dir": f"disk:/{tmp_path}/out", "settings": SMALL}
    build_on_beam(job | {"expected_error": "found no words"})
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_edit_between_the_two_passes_is_an_error(folder, build_on_beam):
    """Replaces words only, so the numbers of documents and sentences stay the same."""
    edited = folder["input_file"] + "/3.txt"
    error = f"{edited}: the content changed during the build"
    job = folder | {
        "settings": SMALL,
        "before_shards": f"edit({edited!r})",
        "expected_error": error,
    }
    build_on_beam(job)
    assert not Path(folder["output_dir"], "manifest.json").exists()


def test_missing_shards_are_an_error(folder, build_on_beam):
    """Makes no shards, as workers that write to the disks of other machines."""
    no_shards = "beam_shards.make_shards = lambda *plan: None"
    error = "4 of 4 shards are missing"
    build_on_beam(folder | {"settings": SMALL, "before": no_shards, "expected_error": error})
    assert not Path(folder["output_dir"], "manifest.json").exists()


def test_worker_with_other_versions_is_an_error(folder, build_on_beam):
    """Builds with workers that had other versions from the start, or only in the second pass."""
    job = folder | {
        "settings": SMALL,
        "expected_error": "; expected numpy 1.0.0, as on the launching",
    }
    build_on_beam(job | {"before": "launch_with_another_numpy()"})
    assert not Path(folder["output_dir"]).exists()
    build_on_beam(job | {"before_shards": "launch_with_another_numpy()"})
    assert not Path(folder["output_dir"], "manifest.json").exists()


def test_invalid_input_prints_an_error_and_no_traceback(folder, beam_python, root, tmp_path):
    (tmp_path / "text/odd.txt").write_bytes(b"ba da\n\xff\xfe\n")
    flags = [f"--{name}={value}" for name, value in folder.items()]
    for words, expected in (
        (["--runner=DirectRunner", "--max_bad_line_share=0"], "odd.txt line 2: not UTF-8"),
        (["--runner=Nobody"], "--runner=Nobody: Unexpected pipeline runner"),
        (
            ["--runner=DirectRunner", "--", "--direct_running_mode=fast"],
            "options after --: argument --direct_running_mode: invalid choice: 'fast'",
        ),
        (
            ["--runner=DirectRunner", "--", "--direct_runing_mode=multi_processing"],
            "options after --: DirectRunner has no option '--direct_runing_mode=multi_processing'",
        ),
        (["--runner=PortableRunner"], "You must specify a --job_endpoint"),
    ):
        done = subprocess.run(
            [beam_python, "-m", "data_tools.create_pretraining_data", *flags, *words],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=root,
        )
        assert done.returncode == 1
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert not Path(folder["output_dir"]).exists()


def test_local_build_rejects_runner_options(files):
    with pytest.raises(InputError, match=r"after --: '--region=x' with --runner=local; expected"):
        create_pretraining_data(**files, settings=SMALL, runner=Runner(options=["--region=x"]))


def test_num_workers_with_a_beam_runner_is_rejected(files):
    with pytest.raises(InputError, match=r"--num_workers=2 with --runner=DirectRunner: expected"):
        create_pretraining_data(
            **files, settings=SMALL, num_workers=2, runner=Runner("DirectRunner")
        )


def test_missing_beam_error_names_the_package_to_install(files, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'keras-bert-pipeline\[beam\]'"):
        create_pretraining_data(**files, settings=SMALL, runner=Runner("DirectRunner"))
