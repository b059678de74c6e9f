"""The repository: few entries at the top, and continuous integration that runs .ci/run."""

import subprocess

import yaml


def test_root_has_at_most_20_entries_besides_the_programs(root):
    command = ["git", "ls-files"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = {path.partition("/")[0] for path in done.stdout.splitlines()}
    programs = {path.name for path in root.glob("*.py") if path.name != "setup.py"}
    assert len(names - programs) <= 20


def test_continuous_integration_runs_what_developers_run(root):
    workflow = yaml.safe_load((root / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    for form in root.glob(".github/ISSUE_TEMPLATE/*.yml"):
        content = yaml.safe_load(form.read_text())
        assert content.keys() == {"name", "description", "body"}
        assert {entry["type"] for entry in content["body"]} <= {"textarea", "input"}
