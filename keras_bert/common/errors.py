"""The exceptions that end a program in one line, so that they can be told from a defect."""


class InputError(ValueError):
    """Input that a user can mend: a file, a line, a flag or a setting.

    The message is one line: where, the value received, and the value expected.
    Programs print it without a traceback and exit with 1 (`keras_bert.programs.program.run`).
    """


class EndedEarly(Exception):
    """A run that the machines ended, not its settings: the same command resumes it.

    A signal to stop, or a worker that is gone. The message is one line. Programs print it without
    a traceback and exit with EXIT_CODE, on which `keras_bert.training.supervise` starts anew.
    """

    EXIT_CODE = 75  # sysexits.h: a temporary failure, to be tried again
