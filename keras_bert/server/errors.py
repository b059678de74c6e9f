"""Defines the exception for failed requests, with TensorFlow Serving's statuses and messages."""


class RestError(Exception):
    """A failed request, which is answered with an HTTP status and {"error": message}."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


def bad_request(message: str) -> RestError:
    """Creates an error with status 400, which corresponds to TensorFlow's INVALID_ARGUMENT."""
    return RestError(400, message)
