"""The optimizers on the other backends, through `stateless_apply`."""

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_stateless_run_equals_the_reference(backend_python, backend):
    done = subprocess.run(
        [backend_python(backend), str(Path(__file__).with_name("stateless_run.py"))],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["tensorflow_imported"]
    assert max(found[rule] for rule in ("adamw", "adamw_corrected", "lamb")) < 1e-6, found
