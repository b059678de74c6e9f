"""Exceptions for expected failures, which programs report in one line without a traceback."""


class InputError(ValueError):
    """An error in the input that the user can fix: a file, a line, a flag or a setting.

    The message is one line with the location, the value received and the value expected. Programs
    print it without a traceback and exit with status 1 (`keras_bert.programs.program.run`).
    """


class EndedEarly(Exception):
    """A run that stopped for a reason outside its settings; the same command resumes it.

    Reasons are a signal to stop, or the loss of another worker. The message is one line. Programs
    print it without a traceback and exit with EXIT_CODE, after which
    `keras_bert.training.supervise` restarts them.
    """

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: a temporary failure, try again
