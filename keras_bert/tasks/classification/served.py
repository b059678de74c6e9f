"""Defines the signatures of an exported classifier."""

from keras_bert.serving.network import Network
from keras_bert.tasks.classification.processor import ClassificationProcessor
from keras_bert.tasks.text_tasks import ServedTexts


class ServedClassifier(ServedTexts):
    """The SavedModel signatures of a classifier or a regression model."""

    def __init__(self, network: Network, processor: ClassificationProcessor):
        super().__init__(network, processor)
        self.input_names = ("text", "text_pair") if processor.settings.pair else ("text",)
