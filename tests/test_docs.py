"""The documentation uses programs, flags and files that exist."""

import importlib
import os
import re
import runpy
import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.options import absl_flags, declared
from tests import processes

# A command begins at the start of a line or after a prompt, variables or another command.
_COMMAND = re.compile(
    r"(?:^|[\s(`$])(keras-bert [a-z][a-z-]*|python (?:-m )?[\w./]+)((?: [^`\n]*)?)"
)
_FLAG = re.compile(r"--([a-z][a-z0-9_]*)")


@pytest.fixture(scope="module")
def generator(root: Path) -> dict:
    """Returns the globals of docs/generate_flags.py."""
    return runpy.run_path(str(root / "docs" / "generate_flags.py"))


@pytest.fixture(scope="module")
def flags_by_command() -> dict[str, set[str]]:
    """Returns {command: names of its flags} for every program."""
    commands = {}
    for name, (module, _) in PROGRAMS.items():
        values = importlib.import_module(module).PROGRAM.flags()
        with absl_flags(values, ""):
            known = set(values)
        commands[f"keras-bert {name}"] = known
    return commands


def pages_of(root: Path) -> list[Path]:
    """Returns the pages that are written by hand."""
    pages = [page for page in root.glob("docs/**/*.md") if page.parent.name != "programs"]
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted(pages)]


def commands_in(text: str) -> list[tuple[str, str]]:
    """Returns (command, arguments) of our programs; lines that end with a backslash continue.

    Migration pages show commands of other libraries too, each below a comment with its name.
    """
    ours, lines = True, []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        comment = re.match(r"\s*# (Google|Model Garden|keras_bert)", line)
        if comment or not line.strip():
            ours = not comment or comment[1] == "keras_bert"
        elif ours:
            lines.append(line)
    return [match.groups() for line in lines for match in _COMMAND.finditer(line)]


def test_commands_have_known_flags(root: Path, flags_by_command: dict[str, set[str]]):
    wrong, count = [], 0
    for page in pages_of(root):
        for command, arguments in commands_in(page.read_text(encoding="utf-8")):
            if command not in flags_by_command:
                if command.startswith("keras-bert"):
                    wrong.append(f"{page.name}: {command}")
                continue
            known = flags_by_command[command]
            given = _FLAG.findall(re.split(r" \| |# ", arguments)[0])
            count += len(given)
            wrong += [
                f"{page.name}: {command} --{flag}"
                for flag in given
                if flag not in known and flag.removeprefix("no") not in known
            ]
    assert not wrong
    assert count > 200


def test_every_program_has_a_page_in_the_list(root: Path):
    pages = (root / "mkdocs.yml").read_text(encoding="utf-8")
    for name in PROGRAMS:
        assert f"reference/programs/{name}.md" in pages


def test_flag_pages_list_every_flag_once(generator: dict):
    for module, purpose in PROGRAMS.values():
        program = importlib.import_module(module).PROGRAM
        page = generator["page"](program, purpose)
        for name in declared(program.flags()):
            assert page.count(f"| `--{name}` |") == 1
        needed = "required, not needed with `--nodo_train` |"
        reads_stdin = program.name in ("classify", "embed")
        assert (f"| `--output_dir` | string | {needed}" in page) == reads_stdin


@pytest.mark.slow
def test_quickstart_of_the_readme_runs(root: Path, pretrained: Path, tmp_path: Path):
    """Runs it offline, with a tiny model in the place of the one of the Hugging Face Hub."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    code = re.search(r"start:quickstart.*?```python\n(.*?)```", readme, re.DOTALL)[1]
    name = re.search(r'from_pretrained\("(.+?)"\)', code)[1]
    cached = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(pretrained, cached / "snapshots" / "0")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = processes.run(["-c", code], cwd=tmp_path, env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rsplit(" ", 1)[0] in code
    assert (tmp_path / "serving/minilm/1/saved_model.pb").is_file()


def test_llms_txt_lists_every_page_once(root: Path):
    listed = re.findall(r"\]\(([^)]+)\.html\): ", (root / "docs/llms.txt").read_text("utf-8"))
    pages = [
        page.relative_to(root / "docs").with_suffix("").as_posix()
        for folder in ("tutorials", "guides", "concepts", "migration")
        for page in (root / "docs" / folder).glob("[!i]*.md")
    ]
    others = ["index", "programs/index", "file_formats", "outputs"]
    assert sorted(listed) == sorted([*pages, *(f"reference/{page}" for page in others)])


def anchors_of(page: Path, root: Path) -> set[str]:
    """Returns the anchors of the headings of a page and of the pages that it includes."""
    text = page.read_text(encoding="utf-8")
    for included in re.findall(r'^--8<-- "([^":]+)', text, re.MULTILINE):
        text += (root / included).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_of_pages_lead_to_files_and_headings(root: Path):
    """The site checks its own links; generated pages are on the site only."""
    wrong = []
    others = [root / "CHANGELOG.md", root / "benchmarks/README.md", root / "examples/README.md"]
    for page in [*pages_of(root), *others]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if name.startswith("https://"):
                continue
            if not target.exists() or "programs" in Path(name).parts:
                wrong.append(f"{page.name}: {link}")
            elif anchor and anchor not in anchors_of(target, root):
                wrong.append(f"{page.name}: {link}: no such heading")
    assert not wrong


# --- the example files of docs/serving ---

GUIDE = "../guides/serving.md"


@pytest.fixture(scope="module")
def serving(root: Path) -> Path:
    """Returns the folder of the examples."""
    return root / "docs" / "serving"


def test_model_config_matches_the_export_commands(serving: Path):
    text = (serving / "models.config").read_text()
    models = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    assert {model.model_platform for model in models} == {"tensorflow"}
    assert [dict(model.version_labels) for model in models] == [{"stable": 1}]
    for model in models:
        assert model.base_path == f"/models/{model.name}"
        assert f"--export_dir=serving/{model.name}/1\n" in (serving / GUIDE).read_text()
        loaded = model.model_version_policy.specific.versions
        assert sorted(model.version_labels.values()) == list(loaded)


def test_all_files_name_one_supported_release(serving: Path):
    named = {
        name: re.search(pattern, (serving / name).read_text())[1]
        for name, pattern in {
            "Dockerfile": r"TF_SERVING_VERSION=(2\.\d+)\.\d+\n",
            "compose.yaml": r"TF_SERVING_VERSION:-(2\.\d+)\.\d+}",
            GUIDE: r"tensorflow/serving:(2\.\d+)\.\d+\n",
        }.items()
    }
    assert len(set(named.values())) == 1
    assert named["Dockerfile"] in {"2.18", "2.19", "2.20"}  # See test_tensorflow_serving.py.
