"""Defines the exceptions for expected failures, which programs print without a traceback."""


class InputError(ValueError):
    """Raised for input that the user can fix: a file, a line, a flag or a setting.

    The message is one line with the location, the value found and the value expected. Programs
    print it without a traceback and exit with status 1.
    """


class InUse(InputError):
    """Raised when another process holds a lock or a port that this one needs.

    The same command works once that process has ended. Programs therefore print the message as for
    an `InputError`, but exit with the code of `EndedEarly`, and supervisors restart them.
    """


class EndedEarly(Exception):
    """Raised when a run stops for a reason outside its settings; the same command resumes it.

    The reason is a signal, or the loss of another worker. Programs print the one-line message and
    exit with EXIT_CODE, and `keras_bert.training.supervise` restarts them.
    """

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: a temporary failure, try again
