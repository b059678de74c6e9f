"""Defines the BERT models: the encoder, and the encoder with each task head."""

from keras_bert.models.classifier import BertClassifier
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.pretrainer import BertPretrainer
from keras_bert.models.span_labeler import BertSpanLabeler
from keras_bert.models.token_classifier import BertTokenClassifier

__all__ = [
    "BertClassifier",
    "BertEncoder",
    "BertPretrainer",
    "BertSpanLabeler",
    "BertTokenClassifier",
]
