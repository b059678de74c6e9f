"""Defines the exceptions for expected failures, which programs print without a traceback."""


class InputError(ValueError):
    """Raised for input that the user can fix: a file, a line, a flag or a setting.

    The message is one line with the location, the value found and the value expected. Programs
    print it without a traceback and exit with status 1. All functions that check input raise it;
    docstrings list it for the public API, and where the state after it matters.
    """


def shorten(text: str, limit: int = 200) -> str:
    """Truncates a text from the input, for an error message, to `limit` characters and "..."."""
    return text if len(text) <= limit else text[:limit] + "..."


class InUse(InputError):
    """Raised when another process uses the run's folder, or this worker's port in TF_CONFIG.

    The same command works once that other process has ended. Programs print the message as for an
    `InputError`, but exit with `EndedEarly.EXIT_CODE`.
    """


class EndedEarly(Exception):
    """Raised when a run stops for a reason outside its settings; the same command resumes it.

    For example, the run received SIGTERM, or another worker process was lost. Programs print the
    one-line message and exit with EXIT_CODE, after which Slurm or Kubernetes starts them again
    (docs/cluster).
    """

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: a temporary failure, try again
