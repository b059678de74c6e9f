"""The exception for a request that fails: an HTTP status and TensorFlow Serving's message."""


class RestError(Exception):
    """A request that is answered with an HTTP status and {"error": message}."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


def bad_request(message: str) -> RestError:
    """Makes an error with status 400, which corresponds to TensorFlow's INVALID_ARGUMENT."""
    return RestError(400, message)
