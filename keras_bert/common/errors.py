"""Defines the exceptions for expected failures, which programs print without a traceback."""


class InputError(ValueError):
    """Raised for input that the user can fix: a file, a line, a flag or a setting.

    The message is one line with the location, the value found and the value expected. Programs
    print it without a traceback and exit with status 1.
    """


class InUse(InputError):
    """Raised when another process holds a lock or a port that this process needs.

    The same command works once that other process has ended. Programs print the message as for an
    `InputError`, but exit with `EndedEarly.EXIT_CODE`, so supervisors restart them.
    """


class EndedEarly(Exception):
    """Raised when a run stops for a reason outside its settings; the same command resumes it.

    The reason is a signal, or the loss of another worker process. Programs print the one-line
    message and exit with EXIT_CODE, so `keras_bert.training.supervise` restarts them.
    """

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: a temporary failure, try again
