"""Labels the windows of long texts for training."""

import dataclasses

import numpy as np

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.prepared import Prepared
from keras_bert.text.windows import TextWindows


def labeled_examples(prepared: Prepared, labels: np.ndarray) -> Examples:
    """Returns the training examples of texts with labels, [n, ...] for n texts.

    Each window of a text is an example with the label of the text.
    """
    inputs = [chunk.inputs for chunk in prepared.chunks]
    if isinstance(inputs[0], TextWindows):
        counts = [np.bincount(each.text, minlength=len(each.truncated)) for each in inputs]
        labels = np.repeat(labels, np.concatenate(counts), axis=0)
    return dataclasses.replace(prepared.examples, labels={"labels": labels})
