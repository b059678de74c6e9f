"""BERT's networks on keras.ops: the encoder, and the encoder with each head."""

from keras_bert.models.encoder import BertEncoder
from keras_bert.models.networks import (
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
