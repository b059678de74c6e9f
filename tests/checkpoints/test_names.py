"""The table of weight names: ours and Hugging Face's, including older ones."""

import pytest

from keras_bert.checkpoints.safetensors_file import current_name, hugging_face_name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("encoder/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight"),
        ("encoder/embeddings/LayerNorm/beta", "bert.embeddings.LayerNorm.bias"),
        (
            "encoder/layer_11/attention/self/query/kernel",
            "bert.encoder.layer.11.attention.self.query.weight",
        ),
        (
            "encoder/layer_0/attention/output/LayerNorm/gamma",
            "bert.encoder.layer.0.attention.output.LayerNorm.weight",
        ),
        ("encoder/layer_3/intermediate/dense/bias", "bert.encoder.layer.3.intermediate.dense.bias"),
        ("encoder/pooler/dense/kernel", "bert.pooler.dense.weight"),
        ("masked_lm/dense/kernel", "cls.predictions.transform.dense.weight"),
        ("masked_lm/LayerNorm/gamma", "cls.predictions.transform.LayerNorm.weight"),
        ("masked_lm/output_bias", "cls.predictions.bias"),
        ("next_sentence/kernel", "cls.seq_relationship.weight"),
        ("classifier/bias", "classifier.bias"),
        ("span/kernel", "qa_outputs.weight"),
    ],
)
def test_hugging_face_names(ours, theirs):
    assert hugging_face_name(ours) == theirs


def test_unknown_variable_raises_key_error():
    with pytest.raises(KeyError):
        hugging_face_name("adapter/kernel")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("cls.predictions.transform.LayerNorm.beta", "cls.predictions.transform.LayerNorm.bias"),
        ("embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.weight"),
        ("encoder.layer.0.output.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.weight"),
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.0.output.dense.weight"),
    ],
)
def test_older_names_and_names_without_prefix(old, new):
    assert current_name(old) == new
