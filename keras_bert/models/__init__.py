"""Defines the BERT models: the encoder, and the encoder with each task head."""

from keras_bert.models.encoder import BertEncoder
from keras_bert.models.heads import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)

# All networks. Of those with the same heads, the first one is that of a checkpoint that does not
# name its class in transformers.
NETWORKS = (BertClassifier, BertTokenClassifier, BertSpanLabeler, BertPretrainer, BertEncoder)

__all__ = [
    "NETWORKS",
    "BertClassifier",
    "BertEncoder",
    "BertPretrainer",
    "BertSpanLabeler",
    "BertTokenClassifier",
]
