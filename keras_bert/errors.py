"""The one exception that bad input raises, so that programs can tell it from a defect."""


class InputError(ValueError):
    """Input that a user can mend: a file, a line, a flag or a setting.

    The message is one line that quotes what was received, says what was expected, and where.
    Programs print it without a traceback and exit with 1 (`keras_bert.program.run`).
    """
