"""BERT in TensorFlow and Keras 3, from raw text to a served model.

    import keras_bert

    classifier = keras_bert.TextClassifier.from_pretrained("bert", labels=["0", "1"])
    classifier.fit(texts, labels, epochs=3)
    classifier.predict(["a film", "another film"])

Public names are imported on first use: `import keras_bert` imports neither TensorFlow nor Keras.
"""

# Programs import this module before they handle Ctrl-C, so it must import only fast modules.
import importlib
import os

from keras_bert.startup import register_with_keras
from keras_bert.tasks import CLASSES

TYPE_CHECKING = False  # Type checkers assume True, as for `typing.TYPE_CHECKING`.
if TYPE_CHECKING:
    from keras_bert.config import BertConfig
    from keras_bert.models import (
        BertClassifier,
        BertEncoder,
        BertPretrainer,
        BertSpanLabeler,
        BertTokenClassifier,
    )
    from keras_bert.programs.adapt import adapt
    from keras_bert.programs.pretrain import pretrain
    from keras_bert.tasks.classification.task import TextClassifier
    from keras_bert.tasks.embedding.task import TextEmbedder
    from keras_bert.tasks.fill_mask import MaskFiller
    from keras_bert.tasks.load import load
    from keras_bert.tasks.ner.task import EntityTagger
    from keras_bert.tasks.question_answering.task import QuestionAnswerer
    from keras_bert.tasks.retrieval import RetrievalData, evaluate_rankings
    from keras_bert.text.tokenizer import BertTokenizer

__version__ = "0.3.0"

__all__ = [
    "BertClassifier",
    "BertConfig",
    "BertEncoder",
    "BertPretrainer",
    "BertSpanLabeler",
    "BertTokenClassifier",
    "BertTokenizer",
    "EntityTagger",
    "MaskFiller",
    "QuestionAnswerer",
    "RetrievalData",
    "TextClassifier",
    "TextEmbedder",
    "__version__",
    "adapt",
    "evaluate_rankings",
    "load",
    "pretrain",
]

_MODULES = {
    "BertClassifier": "keras_bert.models",
    "BertConfig": "keras_bert.config",
    "BertEncoder": "keras_bert.models",
    "BertPretrainer": "keras_bert.models",
    "BertSpanLabeler": "keras_bert.models",
    "BertTokenClassifier": "keras_bert.models",
    "BertTokenizer": "keras_bert.text.tokenizer",
    "RetrievalData": "keras_bert.tasks.retrieval",
    "adapt": "keras_bert.programs.adapt",
    "evaluate_rankings": "keras_bert.tasks.retrieval",
    "load": "keras_bert.tasks.load",
    "pretrain": "keras_bert.programs.pretrain",
    **{name: module for module, name in CLASSES.values()},
}


def __getattr__(name: str) -> object:
    """Imports a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    if module.startswith(("keras_bert.tasks", "keras_bert.text")) or (
        module == "keras_bert.models"
        and os.environ.get("KERAS_BACKEND") in (None, "", "tensorflow")
    ):
        from keras_bert.startup import start_tensorflow

        start_tensorflow()
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_keras()
