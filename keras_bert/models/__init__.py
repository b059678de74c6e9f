"""Defines the BERT models: the encoder, and the encoder with each task head."""

from keras_bert.models.encoder import BertEncoder
from keras_bert.models.heads import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)

__all__ = [
    "BertClassifier",
    "BertEncoder",
    "BertPretrainer",
    "BertSpanLabeler",
    "BertTokenClassifier",
]
