"""The one exception that a request's own failure raises: an HTTP status and TensorFlow's words."""


class RestError(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status.
        message: what the body says under "error".
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


def bad_request(message: str) -> RestError:
    """Makes the error for a request that is not understood.

    Args:
        message: what the body says under "error".

    Returns:
        An error of status 400, TensorFlow's INVALID_ARGUMENT.
    """
    return RestError(400, message)
