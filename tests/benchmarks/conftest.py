"""Makes the modules of benchmarks/ importable, as they are for the programs there."""

import importlib
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def ablation(root):
    """Returns the modules of the study by name."""
    # At the end of the path, since the files of benchmarks/ have names of other packages.
    sys.path.append(str(root / "benchmarks"))
    names = ("plan", "plots", "report", "run", "tagger")
    yield SimpleNamespace(**{name: importlib.import_module(f"ablation.{name}") for name in names})
    sys.path.remove(str(root / "benchmarks"))
