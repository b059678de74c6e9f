"""Tests reading SQuAD from a folder that TensorFlow Datasets has prepared."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.prepared_tfds import find_prepared
from keras_bert.tasks.question_answering.questions import Answer
from keras_bert.tasks.question_answering.tfds import read_tfds


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares a folder with squad/v2.0 and two questions about one context."""
    tfds = pytest.importorskip("tensorflow_datasets")
    import numpy as np

    answers = tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32})
    text = tfds.features.Text()
    features = {"context": text, "question": text, "id": np.str_, "title": text}

    def entry(name, texts, starts):
        found = {"text": texts, "answer_start": starts}
        row = {"context": "Rollo schwor ½ Treue.", "question": "Wer?", "id": name, "title": "N"}
        return name, row | {"answers": found, "is_impossible": not texts}

    class Squad(tfds.core.GeneratorBasedBuilder):
        name = "squad"
        VERSION = tfds.core.Version("3.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="v2.0")]  # noqa: RUF012

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    features | {"answers": answers, "is_impossible": np.bool_}
                ),
            )

        def _split_generators(self, dl_manager):
            return {"validation": [entry("a", ["Treue"], [15]), entry("b", [], [])]}

        def _generate_examples(self):
            raise NotImplementedError

    folder = tmp_path_factory.mktemp("tfds")
    Squad(data_dir=folder).download_and_prepare()
    return folder


def test_prepared_questions_are_read(prepared):
    read = {question.id: question for question in read_tfds("v2.0", "validation", str(prepared))}
    assert read["a"].answers == (Answer("Treue", 15),)
    assert read["b"].answers == ()
    assert read["a"].context is read["b"].context
    assert find_prepared("squad/v2.0", str(prepared)) == prepared / "squad" / "v2.0" / "3.0.0"


def test_missing_split_is_rejected(prepared):
    with pytest.raises(InputError, match="split train: expected one of validation"):
        read_tfds("v2.0", "train", str(prepared))


def test_nothing_is_downloaded(tmp_path):
    assert find_prepared("squad/v1.1", str(tmp_path)) is None
    with pytest.raises(InputError, match=r"tfds build squad/v1\.1 --data_dir="):
        read_tfds("v1.1", "train", str(tmp_path))
