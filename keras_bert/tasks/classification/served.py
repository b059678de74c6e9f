"""The signatures of a served classifier."""

from keras_bert.serving.network import Network
from keras_bert.tasks.classification.processor import ClassificationProcessor
from keras_bert.tasks.text_tasks import ServedTexts


class ServedClassifier(ServedTexts):
    """A classifier or a regression as signatures of a SavedModel.

    Args:
        network: of a BertClassifier.
        processor: the task's graph functions.
    """

    def __init__(self, network: Network, processor: ClassificationProcessor):
        super().__init__(network, processor)
        self.input_names = ("text", "text_pair") if processor.settings.pair else ("text",)
