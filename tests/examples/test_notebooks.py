"""The example notebooks run from top to bottom, and are kept with clean outputs."""

import ast
import os
import re
import string
from pathlib import Path

import nbformat
import pytest

from tests import processes

# Values of parameters with which a notebook runs in seconds.
SMALL = {
    "classifier": {"TEXTS_PER_CLASS": 8, "EPOCHS": 1},
    "domain_adaptation": {
        "ADAPTATION": {"max_seq_length": 64, "num_train_steps": 2, "min_frequency": 2},
        "SEEDS": [0],
        "LABELLED_PER_CLASS": 2,
        "EPOCHS": 1,
        "TEST_TEXTS": 16,
    },
    "named_entities": {"GENERATED": 8, "EPOCHS": 1},
    "question_answering": {"MAX_QUESTIONS": 12, "EPOCHS": 1},
    "search": {"MAX_PAIRS": 30, "MARGIN": None, "EPOCHS": 1},
}
# Runs the cells of a notebook in this process.
RUN = """if True:
    import sys
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    for cell in nbformat.read(sys.argv[1], as_version=4).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()
"""
# Local paths, and messages of TensorFlow, XLA and absl.
UNWANTED = re.compile(r"/work/|/tmp/|/home/|/root/|WARNING|^INFO:|^[IWEF]0000 ", re.MULTILINE)


def read(root: Path, name: str) -> nbformat.NotebookNode:
    """Reads a notebook and checks it against the notebook format."""
    notebook = nbformat.read(root / "examples" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def parameters_cell(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns the only cell with the tag `parameters`."""
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    return cell


def names_assigned(source: str) -> set[str]:
    """Returns the names that assignments in Python source define."""
    return {target.id for line in ast.parse(source).body for target in line.targets}


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Returns the text of every output."""
    texts = []
    for output in (output for cell in code_cells(notebook) for output in cell.outputs):
        texts.append(output.get("text", ""))
        texts += [str(v) for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return texts


@pytest.fixture(scope="session")
def tiny_model(make_checkpoint, tmp_path_factory) -> Path:
    """Returns a random encoder whose vocabulary has letters and unused tokens."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = [f"[unused{number}]" for number in range(20)]
    tokens += [*characters, *(f"##{c}" for c in string.ascii_lowercase + string.digits)]
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    return make_checkpoint(folder, tokens, max_position_embeddings=160)


def test_every_notebook_is_tested(root: Path):
    assert {path.stem for path in root.glob("examples/*.ipynb")} == set(SMALL)


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Writes the files of domain_adaptation.ipynb with 40 reviews per label, and returns them."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    for label, word in (("neg", "不好"), ("pos", "很好")):
        lines = [f"这本书第{number}章写得{word}。朋友也这样说！" for number in range(40)]
        (folder / f"{label}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_notebook_runs(name: str, root: Path, tiny_model: Path, reviews: Path, tmp_path: Path):
    notebook = read(root, name)
    cell = parameters_cell(notebook)
    values = {"MODEL": str(tiny_model), "OUTPUT_DIR": str(tmp_path / "out"), **SMALL[name]}
    if name == "domain_adaptation":
        values["REVIEWS"] = str(reviews)
    assert set(values) <= names_assigned(cell.source)
    cell.source += "\n" + "\n".join(f"{key} = {value!r}" for key, value in values.items())
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    done = processes.run(
        ["-c", RUN, tmp_path / "notebook.ipynb"],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # TensorFlow reports that oneDNN lacks an integer type on some CPUs.
    noise = re.compile(r"WARNING|^INFO:|^[IWEF]0000 (?!.*oneDNN supports)", re.MULTILINE)
    assert not noise.search(done.stdout + done.stderr)


@pytest.mark.parametrize("name", SMALL)
def test_kept_outputs_are_complete_and_clean(name: str, root: Path):
    notebook = read(root, name)
    assert {"MODEL", "OUTPUT_DIR"} <= names_assigned(parameters_cell(notebook).source)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in output_texts(notebook) if UNWANTED.search(text)]
    assert not UNWANTED.search(str(notebook.metadata))


def test_plots_are_kept(root: Path):
    cells = code_cells(read(root, "domain_adaptation"))
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
