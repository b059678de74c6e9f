"""Served taggers: entities as the schemes define them, words as run_ner tags them, any text."""

import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models import BertTokenClassifier
from keras_bert.serving.entities import ServedTagger, TaggerSettings, entity_words
from keras_bert.serving.network import Network
from keras_bert.serving.word_windows import word_logits
from keras_bert.tasks.ner.conll import Sentence, read_conll
from keras_bert.tasks.ner.tag_schemes import entities, iob2_tags
from keras_bert.tasks.ner.windows import make_windows
from keras_bert.text.tokenizer import BertTokenizer, byte_to_char_offsets

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(*CHARACTERS, *".,:;-&@#_/'中国"),
    *(f"##{character}" for character in CHARACTERS),
]
SCHEMES = {
    "iob2": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"],
    "iob1": ["I-PER", "O", "B-PER", "I-creative-work", "B-creative-work"],
    "bioes": ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("LOC", "PER"))],
    "untyped": ["B", "I", "O"],
}


class EveryWord:
    """A network that finds the first label likeliest everywhere."""

    config = SimpleNamespace(max_position_embeddings=512)

    def __init__(self, num_labels=1):
        self.num_labels = num_labels

    def __call__(self, input_ids, segment_ids):
        return {"logits": tf.one_hot(tf.zeros_like(input_ids.values), self.num_labels) * 2.0}


def served(network, labels, max_seq_length=16):
    return ServedTagger(network, BertTokenizer(VOCAB), labels, TaggerSettings(max_seq_length))


def listed(outputs):
    """What is not padding, a list of (type, text, start, end) a text."""
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
def words_of():
    """A function: texts -> the words that are found in each."""
    tagger = served(EveryWord(), ["S-X"])
    find = tf.function(tagger.entities, input_signature=[tf.TensorSpec([None], tf.string)])

    def words(*texts):
        return [[text for _, text, *_ in row] for row in listed(find(tf.constant(texts)))]

    return words


@pytest.fixture(scope="module")
def tagger_of():
    """A function: labels -> a tagger of a random model, whose logits are far apart."""

    def make(labels, max_seq_length=16):
        keras.utils.set_random_seed(0)
        config = BertConfig(
            vocab_size=len(VOCAB),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            initializer_range=0.5,
        )
        model = BertTokenClassifier(config, num_labels=len(labels))
        return served(Network(model), labels, max_seq_length)

    return make


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_any_scheme_are_those_of_conlleval(scheme):
    labels = SCHEMES[scheme]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.integers(0, len(labels) - 1), max_size=8), max_size=6))
    def check(rows):
        tags = tf.RaggedTensor.from_row_lengths(
            tf.constant([tag for row in rows for tag in row], tf.int32),
            tf.constant([len(row) for row in rows], tf.int64),
        )
        inside, begins, kind = (tags.with_values(v) for v in entity_words(labels, tags))
        kinds = sorted({label.partition("-")[2] for label in labels if label != "O"})
        for row, *found in zip(
            rows, inside.to_list(), begins.to_list(), kind.to_list(), strict=True
        ):
            expected = iob2_tags(entities([labels[tag] for tag in row]), len(row))
            written = [
                f"{'B' if b else 'I'}-{kinds[k]}".removesuffix("-") if i else "O"
                for i, b, k in zip(*found, strict=True)
            ]
            assert written == expected

    check()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_words_that_fit_are_tagged_as_run_ner_tags_them(tagger_of, scheme):
    labels = SCHEMES[scheme]
    tagger = tagger_of(labels)
    rng = np.random.default_rng(0)
    choice = ["a", "bc", "d.e", "\u200b", " ", "éa", "中国", "x" * 300, "?", "f\xa0g", "\x01"]
    # A word of 300 pieces fills a window by itself; else at most 7 words of 2 pieces or so.
    sentences = [["x" * 250], ["\u200b"]] + [
        rng.choice([w for w in choice if len(w) < 9], rng.integers(1, 5)).tolist()
        for _ in range(40)
    ]
    windows = make_windows(
        [Sentence(tuple(words), (), 1) for words in sentences], tagger.tokenizer, 16
    )
    assert len(windows.examples) == len(sentences)  # all fit
    examples = windows.examples
    rows = tf.RaggedTensor.from_row_splits(examples.input_ids, examples.starts)
    logits = tagger.network(rows, tf.zeros_like(rows))["logits"].numpy()[windows.word_places]
    likeliest = iter(logits.argmax(axis=-1))
    found = [entities([labels[next(likeliest)] for _ in words]) for words in sentences]
    expected = [iob2_tags(row, len(words)) for row, words in zip(found, sentences, strict=True)]

    width = max(map(len, sentences)) + 2
    padded = tf.constant([words + [""] * (width - len(words)) for words in sentences])
    outputs = tagger.tags(padded)
    assert [
        [tag.decode() for tag in row[: len(words)]]
        for row, words in zip(outputs["tags"].numpy(), sentences, strict=True)
    ] == expected
    padding = padded.numpy() == b""
    assert set(outputs["tags"].numpy()[padding]) == {b""}
    probabilities = tf.nn.softmax(logits).numpy().max(axis=-1)
    np.testing.assert_allclose(outputs["scores"].numpy()[~padding], probabilities, rtol=1e-5)
    assert not outputs["scores"].numpy()[padding].any()


def test_a_text_has_the_entities_of_its_words_and_the_mean_of_their_scores(tagger_of):
    tagger = tagger_of(SCHEMES["iob2"], max_seq_length=8)
    rng = np.random.default_rng(1)
    sentences = [rng.choice(["a", "bcd", "ef", "gh", "i"], n).tolist() for n in (1, 4, 9, 30)]
    outputs = tagger.entities([" ".join(words) for words in sentences])
    width = max(map(len, sentences))
    words = tagger.tags([words + [""] * (width - len(words)) for words in sentences])
    assert sum(map(len, listed(outputs))) > 8
    for row, found in enumerate(listed(outputs)):
        tags = [tag.decode() for tag in words["tags"].numpy()[row, : len(sentences[row])]]
        starts = np.cumsum([0, *(len(word) + 1 for word in sentences[row])])
        expected = [
            (kind, " ".join(sentences[row][first:last]), starts[first], starts[last] - 1)
            for kind, first, last in entities(tags)
        ]
        assert found == expected
        scores = [words["scores"].numpy()[row, i:j].mean() for _, i, j in entities(tags)]
        np.testing.assert_allclose(outputs["scores"][row, : len(scores)], scores, rtol=1e-5)
        assert not outputs["scores"].numpy()[row, len(scores) :].any()


@pytest.mark.parametrize("max_seq_length", [3, 4, 5, 8, 15])
def test_each_word_of_a_long_text_is_read_where_the_least_context_on_a_side_is_largest(
    max_seq_length,
):
    room = max_seq_length - 2
    seen = []

    def network(input_ids, segment_ids):
        """Tells of each piece its number, and what its window shows before and after it."""
        assert set(input_ids.values.numpy()[input_ids.row_starts().numpy()]) == {-2}
        assert set(input_ids.values.numpy()[input_ids.row_limits().numpy() - 1]) == {-3}
        assert not segment_ids.values.numpy().any()
        rows = [row[1:-1] for row in input_ids.to_list()]
        seen.extend(rows)
        told = [
            [piece, place, len(row) - 1 - place]
            for row in rows
            for place, piece in [(-1, -1), *enumerate(row), (-1, -1)]
        ]
        return {"logits": tf.constant(told)}

    # Texts of 0 to 39 words; the pieces are numbered.
    sizes = [np.random.default_rng(n).integers(1, room + 3, n) for n in range(40)]
    numbers = iter(range(10_000))
    words = tf.ragged.constant(
        [[[next(numbers) for _ in range(size)] for size in text] for text in sizes],
        tf.int32,
        ragged_rank=2,
    )
    told = word_logits(network, words, max_seq_length, -2, -3).numpy()
    assert told[:, 0].tolist() == [word[0] for text in words.to_list() for word in text]
    assert max(map(len, seen)) == room
    texts = [[piece for word in text for piece in word[:room]] for text in words.to_list()]
    edges = {text[0] for text in texts if text}, {text[-1] for text in texts if text}

    def least(row, place):
        """The pieces on the side where the window hides some, or on the shorter of two."""
        before = np.inf if row[0] in edges[0] else place
        return min(before, np.inf if row[-1] in edges[1] else len(row) - 1 - place)

    best = {}
    for row in filter(None, seen):
        for place, piece in enumerate(row):
            best[piece] = max(best.get(piece, 0), least(row, place))
    assert set(best) == {piece for text in texts for piece in text}  # none is lost
    for piece, before, after in told.tolist():
        row = next(row for row in seen if row[before : before + 1] == [piece])
        assert len(row) - 1 - before == after
        assert least(row, before) == best[piece]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\tc\nd", "a|b|c|d"),
        ("London. (York)", "London|.|(|York|)"),
        ("Jean-Paul at AT&T, AC/DC", "Jean-Paul|at|AT&T|,|AC/DC"),
        ("U.S. and N.E.R.D.", "U.S.|and|N.E.R.D."),
        ("@user #tag a@b.de snake_case", "@user|#tag|a@b.de|snake_case"),
        ("1,000 at 7:30, a,b c:d", "1,000|at|7:30|,|a|,|b|c|:|d"),
        ("it costs 3.5.", "it|costs|3.5|."),
        ("Smith's l'Italie", "Smith|'|s|l|'|Italie"),
        ("a - b -c d- . e", "a|-|b|-|c|d|-|.|e"),
        ("end...next --", "end|.|.|.|next|-|-"),
        ("中国-a a-中国", "中|国|-|a|a|-|中|国"),
        ("A\u0301l-b\u00e9", "A\u0301l-b\u00e9"),
        ("ßx-a", "ßx-a"),  # a word of unknown characters
        ("ß-a", "ß|-|a"),  # one unknown character may be anything
        ("", ""),
        (" \u200b\x01 ", ""),
    ],
)
def test_words_are_parted_as_corpora_part_them(words_of, text, words):
    assert words_of(text) == [words.split("|") if words else []]


def test_words_do_not_join_across_texts(words_of):
    assert words_of("a-", "b", "@", "c", "", ".", "d") == [
        *(["a", "-"], ["b"], ["@"], ["c"], [], ["."], ["d"]),
    ]


def test_places_count_characters_as_python_does(words_of):
    text = "😀 ab 中 e\u0301f\x00g \u00dfx"
    tagger = served(EveryWord(), ["S-X"])
    found = listed(tagger.entities([text]))[0]
    assert [word for _, word, *_ in found] == ["😀", "ab", "中", "e\u0301f\x00g", "\u00dfx"]
    assert all(text[start:end] == word for _, word, start, end in found)


def test_bytes_that_are_not_utf_8_are_kept_and_count_as_characters():
    texts = [
        *(b"a\xffb c\xe2\x82", b"\xff", b"\xed\xa0\x80ab", b"\xf0\x9fa-b"),
        # Of valid texts nothing changes beside them.
        *(b"Jo\x01hn", b"Jo\x00h\xc3\xbcn \xf0\x9f\x99\x82", b""),
    ]
    expected = [["a\udcffb", "c"], [], ["ab"], ["a-b"], ["Jo\x01hn"], ["Jo\0hün", "🙂"], []]
    tagger = served(EveryWord(), ["S-X"])
    together = listed(tagger.entities(texts))
    assert [[word for _, word, *_ in found] for found in together] == expected
    for text, found in zip(texts, together, strict=True):
        assert listed(tagger.entities([text])) == [found]
        decoded = text.decode(errors="surrogateescape")
        assert all(decoded[start:end] == word for _, word, start, end in found)


def test_any_batch_size_with_and_without_entities():
    tagger = served(EveryWord(2), ["O", "B-X"])
    find = tf.function(tagger.entities, input_signature=[tf.TensorSpec([None], tf.string)])
    tag = tf.function(tagger.tags, input_signature=[tf.TensorSpec([None, None], tf.string)])
    for texts in ([], [""], ["a"], ["", "a b", ""]):
        outputs = find(tf.constant(texts, tf.string))
        assert {value.shape for value in outputs.values()} == {(len(texts), 0)}
    for shape in ((0, 0), (0, 2), (2, 0), (2, 2)):
        outputs = tag(tf.zeros(shape, tf.string))
        assert {value.shape for value in outputs.values()} == {shape}
    assert tag(tf.constant([["a", "", "b"]]))["tags"].numpy().tolist() == [[b"O", b"", b"O"]]


@pytest.mark.parametrize(
    ("text", "count"),
    [("ab, " * 250_000, 500_000), ("中" * 333_333, 333_333), ("a" * 1_000_000, 1)],
)
def test_a_text_of_1_mb_has_all_its_words(text, count):
    tagger = served(EveryWord(), ["S-X"], max_seq_length=128)
    outputs = tf.function(tagger.entities)(tf.constant([text, "a"]))
    starts, ends = outputs["starts"].numpy(), outputs["ends"].numpy()
    assert starts.shape == (2, count)
    assert ends[0, -1] == len(text.rstrip())
    assert outputs["texts"].numpy()[0, -1].decode() == text[starts[0, -1] : ends[0, -1]]
    assert (starts[1] >= 0).sum() == 1


def test_most_entities_of_a_real_corpus_are_just_its_own_words(shared_data):
    # The corpus as running text: closing punctuation and clitics follow without space.
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    texts, gold = [], []
    for path in sorted((shared_data / "ner" / "wnut17").iterdir()):
        for sentence in read_conll(path):
            text, spans = "", []
            for word in sentence.words:
                glued = word in ".,;:!?)]}%…" or re.fullmatch(r"['’](s|m|re|ve|ll|d|t)|n'?t", word)
                text += "" if not text or glued or text[-1] in "([{" else " "
                spans.append((len(text), len(text) + len(word)))
                text += word
            texts.append(text)
            tags = [tag.partition(",")[0] for tag in sentence.tags]
            gold.append([spans[first:last] for _, first, last in entities(tags)])
    tokenizer = BertTokenizer(vocab)
    ids, *places = tokenizer.tokenize_with_offsets(texts)
    of_berts_own = []
    for pieces, starts, ends in zip(
        *(x.to_list() for x in (ids, *(byte_to_char_offsets(texts, place) for place in places))),
        strict=True,
    ):
        first = [i for i, piece in enumerate(pieces) if not tokenizer.vocab[piece].startswith("##")]
        last = [i - 1 for i in [*first, len(pieces)][1:]]
        of_berts_own.append([(starts[i], ends[j]) for i, j in zip(first, last, strict=True)])
    tagger = ServedTagger(EveryWord(), tokenizer, ["S-X"], TaggerSettings())
    joined = listed(tf.function(tagger.entities)(tf.constant(texts)))
    of_white_space = [[word.span() for word in re.finditer(r"\S+", text)] for text in texts]

    def share(words):
        """Returns the percentage of entities whose words are all among those found."""
        hits = [set(w) <= set(row) for row, spans in zip(words, gold, strict=True) for w in spans]
        assert len(hits) == 3891
        return round(100 * np.mean(hits), 1)

    # As entities.py says.
    assert share([[(start, end) for *_, start, end in row] for row in joined]) == 98.5
    assert share(of_berts_own) == 96.3
    assert share(of_white_space) == 75.6


def test_token_ids_give_the_likeliest_label_of_each_piece(tagger_of):
    labels = SCHEMES["bioes"]
    tagger = tagger_of(labels)
    ids = np.array([[2, 9, 8, 3, 0], [0, 2, 7, 6, 3], [0, 0, 0, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], np.int32)
    outputs = tagger.signatures()["token_ids"](ids, mask, ids * 0)
    rows = tf.RaggedTensor.from_row_lengths(ids[mask > 0], mask.sum(axis=1))
    logits = tagger.network(rows, tf.zeros_like(rows))["logits"].numpy()
    assert outputs.keys() == {"tags", "logits"}
    np.testing.assert_allclose(outputs["logits"].numpy()[mask > 0], logits, atol=1e-6)
    tags = outputs["tags"].numpy()
    assert tags[mask > 0].tolist() == [labels[i].encode() for i in logits.argmax(axis=1)]
    assert set(tags[mask == 0]) == {b""}
    assert not outputs["logits"].numpy()[mask == 0].any()


@pytest.mark.parametrize("max_seq_length", [2, 513])
def test_windows_that_the_model_has_no_room_for_are_refused(max_seq_length):
    with pytest.raises(InputError, match=f"^--max_seq_length={max_seq_length}: expected 3 to 512"):
        served(EveryWord(), ["O"], max_seq_length)
