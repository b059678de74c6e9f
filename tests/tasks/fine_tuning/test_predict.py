"""Outputs come in the order of the examples, whatever the batches and devices."""

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.model_directory import open_model_directory
from keras_bert.models import BertClassifier, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks.fine_tuning.predict import make_predict_examples
from keras_bert.training.strategy import make_strategy


@pytest.mark.parametrize("kind", ["examples", "pieces", "spans"])
@pytest.mark.parametrize("devices", [1, 2])
def test_each_example_gets_what_it_gets_alone(
    kind, devices, tiny_checkpoint, make_examples, mirrored
):
    config = open_model_directory(tiny_checkpoint).config
    strategy = mirrored if devices == 2 else make_strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = {
            "examples": lambda: BertClassifier(config, 3),
            "pieces": lambda: BertTokenClassifier(config, 3),
            "spans": lambda: BertSpanLabeler(config),
        }[kind]()
    examples = make_examples(11)
    found = make_predict_examples(strategy, model, 4, 0, 64, jit_compile=False)(examples)
    assert set(found) == ({"start_logits", "end_logits"} if kind == "spans" else {"logits"})
    for name, values in found.items():
        for index, ids in enumerate(examples.rows(examples.input_ids)):
            row = np.asarray(ids)[None]
            inputs = {"input_ids": row, "input_mask": row * 0 + 1, "segment_ids": row * 0}
            alone = keras.ops.convert_to_numpy(model(inputs)[name])[0]
            mine = values[index]
            if kind != "examples":
                mine = values[examples.starts[index] : examples.starts[index + 1]]
            np.testing.assert_allclose(mine, alone, atol=1e-5)
