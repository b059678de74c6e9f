"""A tiny pre-trained model that tests of the task objects share."""

import pytest

WORDS = ["good", "bad", "film", "book", "it", "is", "a", "##s", ".", "very"]


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """The folder of a pre-trained model, with its heads, of 32 positions."""
    import keras

    from keras_bert.checkpoints.model_description import ModelDescription
    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer

    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.2,  # Few training steps are enough.
    )
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    save_model_directory(folder, BertPretrainer(config), ModelDescription(config, vocab))
    return folder
