"""Tags and entities of any scheme, in the graph and from exported signatures."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.network import Network
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.tasks.ner.tag_schemes import entities, tags_of
from keras_bert.tasks.ner.task import ServedTagger
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import word_windows
from tests.tasks.ner.conftest import CHARACTER_VOCAB

SCHEMES = {
    "iob1": ["I-PER", "O", "B-PER", "I-creative-work", "B-creative-work"],
    "bioes": ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("LOC", "PER"))],
}


# --- exported signatures ---


class EveryWord:
    """A network with one label."""

    config = BertConfig(vocab_size=100)

    def __call__(self, input_ids, segment_ids):
        return {"logits": tf.one_hot(tf.zeros_like(input_ids.values), 1) * 2.0}


def served(network, labels, max_seq_length=16):
    settings = TaggerSettings(tuple(labels), max_seq_length)
    return ServedTagger(network, TaggingProcessor(BertTokenizer(CHARACTER_VOCAB), settings))


def listed(outputs):
    """Returns the entities without padding, as a list of (type, text, start, end) per text."""
    columns = (outputs[name].numpy() for name in ("types", "texts", "starts", "ends"))
    return [
        [
            (kind.decode(), text.decode(errors="surrogateescape"), int(start), int(end))
            for kind, text, start, end in zip(*row, strict=True)
            if start >= 0
        ]
        for row in zip(*columns, strict=True)
    ]


@pytest.fixture(scope="module")
def tagger_of():
    """Returns a function that makes a tagger with labels and random, widely spread logits."""

    def make(labels, max_seq_length=16):
        keras.utils.set_random_seed(0)
        config = BertConfig(
            len(CHARACTER_VOCAB), 16, 1, 2, 16, max_position_embeddings=32, initializer_range=0.5
        )
        model = BertTokenClassifier(config, num_labels=len(labels))
        return served(Network(model), labels, max_seq_length)

    return make


@pytest.mark.parametrize("scheme", ["iob1", "bioes"])
def test_words_get_the_most_probable_tags_in_iob2(tagger_of, scheme):
    labels = SCHEMES[scheme]
    tagger = tagger_of(labels)
    tokenizer = tagger.processor.tokenizer
    rng = np.random.default_rng(0)
    choice = ["a", "bc", "d.e", "\u200b", " ", "éa", "中国", "x" * 300, "?", "f\xa0g", "\x01"]
    # The last one needs several windows.
    sentences = [
        *(["x" * 250], ["\u200b"], ["", "", "a", "", "b"]),
        *(rng.choice(choice, rng.integers(1, 5)).tolist() for _ in range(40)),
        rng.choice(choice[:4], 30).tolist(),
    ]
    ids = tokenizer.tokenize([word for words in sentences for word in filter(None, words)])
    lengths = [len([*filter(None, words)]) for words in sentences]
    windows = word_windows(tf.RaggedTensor.from_row_lengths(ids, lengths), tokenizer, 16)
    outputs = tagger.network(windows.input_ids, windows.segment_ids)
    logits = tf.gather(outputs["logits"], windows.first_tokens)
    most_probable = iter(np.argmax(logits, axis=-1))
    found = [entities([labels[next(most_probable)] for _ in filter(None, w)]) for w in sentences]
    expected = [tags_of(row, length) for row, length in zip(found, lengths, strict=True)]

    width = max(map(len, sentences)) + 2
    padded = tf.constant([words + [""] * (width - len(words)) for words in sentences])
    outputs = tagger.run("words", padded)
    padding = padded.numpy() == b""
    assert [
        [tag.decode() for tag in row[~empty]]
        for row, empty in zip(outputs["tags"].numpy(), padding, strict=True)
    ] == expected
    assert set(outputs["tags"].numpy()[padding]) == {b""}
    probabilities = tf.nn.softmax(logits).numpy().max(axis=-1)
    np.testing.assert_allclose(outputs["scores"].numpy()[~padding], probabilities, rtol=1e-5)
    assert not outputs["scores"].numpy()[padding].any()


def test_invalid_utf_8_bytes_are_kept_and_count_as_characters():
    texts = [
        *(b"a\xffb c\xe2\x82", b"\xff", b"\xed\xa0\x80ab", b"\xf0\x9fa-b"),
        # Valid texts in the same batch are unaffected.
        *(b"Jo\x01hn", "Jo\0hün 🙂 e\u0301f 中 \u00dfx".encode(), b""),
    ]
    expected = [["a\udcffb", "c"], [], ["ab"], ["a-b"], ["Jo\x01hn"]]
    expected += [["Jo\0hün", "🙂", "e\u0301f", "中", "\u00dfx"], []]
    tagger = served(EveryWord(), ["S-X"])
    together = listed(tagger.run("serving_default", texts))
    assert [[word for _, word, *_ in found] for found in together] == expected
    for text, found in zip(texts, together, strict=True):
        assert listed(tagger.run("serving_default", [text])) == [found]
        decoded = text.decode(errors="surrogateescape")
        assert all(decoded[start:end] == word for _, word, start, end in found)


def test_token_ids_give_the_most_probable_label_of_each_token(tagger_of):
    labels = SCHEMES["bioes"]
    tagger = tagger_of(labels)
    ids = np.array([[2, 9, 8, 3, 0], [0, 2, 7, 6, 3], [0, 0, 0, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], np.int32)
    outputs = tagger.signatures()["token_ids"](ids, mask, ids * 0)
    rows = tf.RaggedTensor.from_row_lengths(ids[mask > 0], mask.sum(axis=1))
    logits = tagger.network(rows, tf.zeros_like(rows))["logits"].numpy()
    assert outputs.keys() == {"tags", "logits", "truncated"}
    assert outputs["truncated"].numpy().tolist() == [False] * 3
    np.testing.assert_allclose(outputs["logits"].numpy()[mask > 0], logits, atol=1e-6)
    tags = outputs["tags"].numpy()
    assert tags[mask > 0].tolist() == [labels[i].encode() for i in logits.argmax(axis=1)]
    assert set(tags[mask == 0]) == {b""}
    assert not outputs["logits"].numpy()[mask == 0].any()
