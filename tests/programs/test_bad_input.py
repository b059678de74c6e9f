"""Generated bad input gives no traceback, no hang and no partial output (tests/bad_input)."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_generated_bad_input_is_handled(root):
    """Runs BAD_INPUT_CASES cases of the seed BAD_INPUT_SEED; the output has the seed."""
    cases = os.environ.get("BAD_INPUT_CASES", "25")
    seed = os.environ.get("BAD_INPUT_SEED", "1")
    command = [sys.executable, "-m", "tests.bad_input", f"--cases={cases}", f"--seed={seed}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed}: exit codes" in done.stdout
