"""Tests that outputs are finite and in example order, for any batch size and devices."""

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.model_directory import open_model_directory
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks.fine_tuning import predict
from keras_bert.tasks.fine_tuning.batches import BatchSettings
from keras_bert.tasks.fine_tuning.predict import make_predict_examples
from keras_bert.training import log
from keras_bert.training.strategy import make_strategy

FOURS = BatchSettings(4, max_seq_length=64)


def make_model(kind, checkpoint):
    config = open_model_directory(checkpoint).config
    keras.utils.set_random_seed(0)
    return {
        "examples": lambda: BertClassifier(config, 3),
        "tokens": lambda: BertTokenClassifier(config, 3),
        "spans": lambda: BertSpanLabeler(config),
    }[kind]()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["examples", "tokens", "spans"])
@pytest.mark.parametrize("devices", [1, 2])
def test_outputs_equal_those_of_each_example_alone(
    kind, devices, tiny_checkpoint, make_examples, mirrored
):
    strategy = mirrored if devices == 2 else make_strategy()
    with strategy.scope():
        model = make_model(kind, tiny_checkpoint)
    examples = make_examples(11)
    found = make_predict_examples(strategy, model, FOURS, jit_compile=False)(examples)
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


@pytest.mark.parametrize(
    ("kind", "name"), [("examples", "logits"), ("tokens", "logits"), ("spans", "start_logits")]
)
def test_non_finite_outputs_are_rejected_and_counted(kind, name, tiny_checkpoint, make_examples):
    model, examples = make_model(kind, tiny_checkpoint), make_examples(11)
    embeddings = model.encoder.embeddings.word_embeddings
    values = keras.ops.convert_to_numpy(embeddings).copy()
    values[7] = np.nan
    embeddings.assign(values)
    broken = sum(7 in ids for ids in examples.rows(examples.input_ids))
    assert 0 < broken < 11
    run = make_predict_examples(make_strategy(), model, FOURS, jit_compile=False)
    message = rf"the model's {name} are not finite for {broken} of 11 examples; no result is saved"
    with pytest.raises(InputError, match=message):
        run(examples)


def test_non_finite_outputs_of_another_worker_are_rejected(
    tiny_checkpoint, make_examples, monkeypatch
):
    """All workers must fail with the same error."""
    monkeypatch.setattr(predict, "all_sum", lambda strategy: lambda values: values + np.inf)
    model = make_model("examples", tiny_checkpoint)
    run = make_predict_examples(make_strategy(), model, FOURS, jit_compile=False)
    with pytest.raises(InputError, match="logits are not finite for 3 of 3 examples"):
        run(make_examples(3))


def test_prediction_logs_its_progress(tiny_checkpoint, make_examples, monkeypatch, caplog):
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.0)
    model = make_model("examples", tiny_checkpoint)
    run = make_predict_examples(make_strategy(), model, FOURS, jit_compile=False)
    with caplog.at_level("INFO", "absl"):
        run(make_examples(11))
    logged = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert logged == [f"predicting: {done}/11 examples" for done in (4, 8, 11)]
