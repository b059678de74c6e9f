"""Generated bad input gives no traceback, no hang and no partial output (tests/bad_input)."""

import os

import pytest

from tests import processes
from tests.bad_input.commands import COMMANDS


@pytest.mark.slow
def test_generated_bad_input_is_handled():
    """Runs BAD_INPUT_CASES cases of the seed BAD_INPUT_SEED; the output has the seed.

    The first cases, the valid commands, are left to the tests of each program.
    """
    cases = os.environ.get("BAD_INPUT_CASES", "30")
    seed = os.environ.get("BAD_INPUT_SEED", "1")
    flags = [f"--cases={cases}", f"--seed={seed}", f"--first={len(COMMANDS)}"]
    done = processes.run(["-m", "tests.bad_input", *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed}: exit codes" in done.stdout
