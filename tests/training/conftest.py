"""The float64 reference as a fixture (test folders are not packages)."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference():
    """Imports the module reference.py beside this file."""
    path = Path(__file__).with_name("reference.py")
    spec = importlib.util.spec_from_file_location("optimization_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
