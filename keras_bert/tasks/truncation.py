"""Reports how many texts of a data set are truncated."""

import numpy as np
from absl import logging


def report_truncation(truncated: np.ndarray, texts: str, limit: str) -> int:
    """Counts the truncated texts, and logs a warning if there are any.

    Args:
        truncated: whether each text was truncated, bool [n].
        texts: what the texts are, such as "training texts".
        limit: the setting that limits the tokens, and its value, such as "max_seq_length=128".
    """
    count = int(np.count_nonzero(truncated))
    if count:
        logging.warning(
            "%d of %d %s are truncated to %s tokens", count, len(truncated), texts, limit
        )
    return count
