"""Makes the modules of benchmarks/ importable, as they are for the programs there."""

import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def _benchmarks(root):
    """Adds benchmarks/ to the end of the path, since its files have names of other packages."""
    sys.path.append(str(root / "benchmarks"))
    yield
    sys.path.remove(str(root / "benchmarks"))
