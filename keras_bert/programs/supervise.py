"""Restarts a training command when it is interrupted, for example by the loss of a machine.

    keras-bert supervise [--num_workers=2] -- keras-bert pretrain ...

If the command ends with exit code 75 or is killed by a signal, it is restarted after a pause and
resumes from its checkpoint. If the command succeeds, rejects its input or is interrupted by Ctrl-C,
the supervisor ends with the same exit code.

On several machines, start a supervisor on each. When one worker fails, the others end with 75, and
all supervisors restart their workers, which then wait for each other. --num_workers runs all
workers on this machine, each with its own TF_CONFIG, and restarts all of them when one ends.
"""

import sys
from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program
from keras_bert.programs.run_flags import define_seconds
from keras_bert.training.supervise import Supervision, supervise


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.integer(
        "max_restarts",
        10,
        "Number of consecutive restarts after which the supervisor gives up.",
        lower_bound=0,
    )
    define_seconds(
        define,
        "backoff",
        1.0,
        "Seconds before the first restart; doubled for each consecutive restart.",
    )
    define_seconds(define, "max_backoff", 300.0, "Maximum number of seconds before a restart.")
    define.number(
        "healthy_after",
        600.0,
        "Seconds of work after which the count of consecutive restarts is reset.",
        lower_bound=0.0,
    )
    define.integer(
        "num_workers",
        0,
        "Number of workers on this machine, each with its own TF_CONFIG; 0: one process that "
        "inherits TF_CONFIG.",
        0,
    )
    define_seconds(
        define, "grace", 60.0, "Seconds that the other workers get to end before they are killed."
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Runs the command after `--`, with restarts, and exits with the exit code of the command."""
    if not arguments:
        raise InputError("expected a command after --, such as: -- keras-bert pretrain ...")
    settings = Supervision(**{field.name: flags[field.name].value for field in fields(Supervision)})
    sys.exit(supervise(arguments, settings))


PROGRAM = Program("supervise", __doc__, define_flags, main)
