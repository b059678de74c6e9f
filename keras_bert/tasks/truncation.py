"""Reports how many texts of a data set are truncated."""

from collections.abc import Mapping

import numpy as np
from absl import logging

from keras_bert.tasks.prepared import Prepared


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


def report_splits(splits: Mapping[str, Prepared], texts: str, limit: str) -> dict[str, int]:
    """Calls `report_truncation` for each split, {name: preprocessed texts}.

    Returns {name: number of truncated texts}.
    """
    return {
        name: report_truncation(prepared.truncated, f"{texts} ({name})", limit)
        for name, prepared in splits.items()
    }
