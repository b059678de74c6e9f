"""Words to windows: every word once, its tag on the first piece, and as much around it as fits."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence, read_conll
from keras_bert.tasks.ner.windows import make_windows
from keras_bert.text.tokenizer import BertTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##x", *"abcdefghijklmnop"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCAB)


def sentences_of(*texts, documents=None):
    documents = documents or [0] * len(texts)
    return [
        Sentence(tuple(text.split(" ")), (), 1, document)
        for text, document in zip(texts, documents, strict=True)
    ]


def shown(windows):
    examples = windows.examples
    return [" ".join(VOCAB[i] for i in row) for row in examples.rows(examples.input_ids)]


def scored(windows):
    """The pieces of each window that are scored."""
    examples = windows.examples
    mark = np.zeros([len(examples.input_ids)], bool)
    mark[windows.word_places] = True
    return [
        "".join(VOCAB[i] for i in row[marked])
        for row, marked in zip(examples.rows(examples.input_ids), examples.rows(mark), strict=True)
    ]


def test_the_first_piece_of_a_word_carries_its_tag_and_the_rest_are_ignored(tokenizer):
    windows = make_windows(sentences_of("axx b", "c"), tokenizer, 16, np.array([3, 0, 2]))
    assert shown(windows) == ["[CLS] a ##x ##x b [SEP]", "[CLS] c [SEP]"]
    tags = windows.examples.token_labels["tags"].tolist()
    assert tags == [-1, 3, -1, -1, 0, -1, -1, 2, -1]


def test_with_label_all_pieces_each_piece_of_a_word_carries_its_tag(tokenizer):
    windows = make_windows(
        sentences_of("axx b"), tokenizer, 16, np.array([3, 0]), label_all_pieces=True
    )
    assert windows.examples.token_labels["tags"].tolist() == [-1, 3, 3, 3, 0, -1]
    assert windows.word_places.tolist() == [1, 4]


@pytest.mark.parametrize("word", ["\u200b", "\u00a0", "\ufe0f", "\x01"])
def test_a_word_that_yields_no_piece_becomes_unk_so_that_no_tag_shifts(tokenizer, word):
    windows = make_windows(sentences_of(f"a {word} b"), tokenizer, 16, np.array([1, 2, 3]))
    assert shown(windows) == ["[CLS] a [UNK] b [SEP]"]
    assert windows.examples.token_labels["tags"].tolist() == [-1, 1, 2, 3, -1]


def test_a_long_sentence_is_split_with_overlap_and_each_word_is_scored_once(tokenizer):
    windows = make_windows(sentences_of("a b c d e f g h i j k l"), tokenizer, 8)
    assert shown(windows) == [
        "[CLS] a b c d e f [SEP]",
        "[CLS] d e f g h i [SEP]",
        "[CLS] g h i j k l [SEP]",
    ]
    # d has two words after it in the first window and none before it in the second; and so on.
    assert scored(windows) == ["abcde", "fgh", "ijkl"]


def test_each_word_is_scored_where_the_least_context_on_a_side_is_largest():
    names = [f"w{index}" for index in range(60)]
    first_piece = len(VOCAB)
    sizes = np.random.default_rng(0).integers(1, 10, 60)
    text = " ".join(name + "x" * (size - 1) for name, size in zip(names, sizes, strict=True))
    windows = make_windows(sentences_of(text), BertTokenizer([*VOCAB, *names]), 22)
    examples = windows.examples
    assert examples.lengths.max() <= 22
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = [row[row >= first_piece] - first_piece for row in examples.rows(examples.input_ids)]
    spans = [(row[0], row[-1] + 1) for row in rows]

    def context(word, span):
        left = np.inf if span[0] == 0 else starts[word] - starts[span[0]]
        right = np.inf if span[1] == 60 else starts[span[1]] - starts[word + 1]
        return min(left, right)

    window_of = np.searchsorted(examples.starts, windows.word_places, "right") - 1
    for word in range(60):
        showing = [context(word, span) for span in spans if span[0] <= word < span[1]]
        assert context(word, spans[window_of[word]]) == max(showing)


def test_a_word_longer_than_a_window_is_cut_and_still_scored(tokenizer):
    windows = make_windows(sentences_of("a " + "b" + "x" * 30 + " c"), tokenizer, 8)
    assert windows.examples.lengths.max() == 8
    assert "".join(scored(windows)) == "abc"


def test_document_context_fills_a_window_with_the_sentences_around(tokenizer):
    texts = ["a b c d", "e f", "g h i j", "k l"]
    sentences = sentences_of(*texts, documents=[0, 0, 0, 1])
    windows = make_windows(sentences, tokenizer, 8, np.arange(12), document_context=True)
    assert shown(windows) == [
        "[CLS] a b c d e f [SEP]",  # nothing before it: what is left goes to the other side
        "[CLS] c d e f g h [SEP]",
        "[CLS] e f g h i j [SEP]",
        "[CLS] k l [SEP]",  # another document
    ]
    assert scored(windows) == ["abcd", "ef", "ghij", "kl"]
    tags = windows.examples.token_labels["tags"]
    assert sorted(tags[tags >= 0].tolist()) == list(range(12))


def test_document_context_does_not_cut_words(tokenizer):
    windows = make_windows(sentences_of("axxx", "b", "cxxx"), tokenizer, 8, document_context=True)
    assert shown(windows)[1] == "[CLS] b c ##x ##x ##x [SEP]"


def test_a_length_without_room_for_a_piece_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"--max_seq_length=2: expected at least 3"):
        make_windows(sentences_of("a"), tokenizer, 2)


@pytest.mark.parametrize("document_context", [False, True])
def test_every_word_of_wnut_17_is_scored_once_at_any_length(shared_data, document_context):
    tokenizer = BertTokenizer(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    sentences = read_conll(shared_data / "ner" / "wnut17" / "emerging.dev.conll")
    words = [word for sentence in sentences for word in sentence.words]
    tags = np.arange(len(words))
    first_pieces = [
        row[0] if row else tokenizer.unk_token_id for row in tokenizer.tokenize(words).to_list()
    ]
    for max_seq_length in (128, 32, 9, 3):
        windows = make_windows(
            sentences, tokenizer, max_seq_length, tags, document_context=document_context
        )
        examples = windows.examples
        assert examples.lengths.max() <= max_seq_length
        assert examples.input_ids[windows.word_places].tolist() == first_pieces
        labels = examples.token_labels["tags"]
        assert labels[windows.word_places].tolist() == tags.tolist()
        assert (labels >= 0).sum() == len(words)
