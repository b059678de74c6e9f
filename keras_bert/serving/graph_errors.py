"""Extracts the error message of a check in the graph of an exported model."""


def failed_check(message: str) -> str:
    """Returns the text and the values of the assertion that failed in a graph.

    Args:
        message: the message of a tf.errors.OpError.

    Returns:
        The text in one line, without TensorFlow's condition and names of nodes; "" if no assertion
        failed.
    """
    # "... assertion failed: [text] [value] [Condition x <= y did not hold ...] ...\n ..."
    line = message.partition("assertion failed: [")[2].partition("\n")[0]
    text, separator, values = line.partition(" [Condition ")[0].partition("] [")
    return f"{text} [{values}" if separator else text.removesuffix("]")
