"""Labels the preprocessed texts of a training set."""

import dataclasses

import numpy as np

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.long_text import window_counts
from keras_bert.tasks.prepared import Prepared


def labeled_examples(prepared: Prepared, labels: np.ndarray) -> Examples:
    """Returns the training examples of texts with labels, [n, ...] for n texts.

    Each window of a text is an example with the label of the text.
    """
    repeated = np.repeat(labels, window_counts(prepared), axis=0)
    return dataclasses.replace(prepared.examples, labels={"labels": repeated})
