"""User tokens stay whole: the ids and offsets are those of the `tokenizers` library."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from keras_bert.checkpoints.tokenizer_files import tokenizer_json
from keras_bert.errors import InputError
from keras_bert.text.offsets import byte_to_char_offsets
from keras_bert.text.settings import TokenizerSettings, UserToken
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab

CHARACTERS = [*"abcdefurl[]<>/@xé中.É"]
VOCAB = [*SPECIAL_TOKENS, "[unused0]", *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]
# Tokens that overlap in texts, that are parts of others, and that normalization changes.
TOKENS = [
    UserToken("[URL]"),
    UserToken("<ent>", normalized=True),
    UserToken("url", special=True),
    UserToken("[url", normalized=True),
    UserToken("urla"),
    UserToken("ab", normalized=True),
    UserToken("bc"),
    UserToken("ÉX", normalized=True),
    UserToken("中b", normalized=True),
    UserToken("c中"),
    UserToken("##ab"),
    UserToken("."),
]
SETTINGS = [(True, None, True), (True, False, True), (False, None, False), (False, True, True)]


def make(vocab, tokens, *settings):
    """Returns our tokenizer and that of the other library, which opens our tokenizer.json."""
    settings = TokenizerSettings(*settings, user_tokens=tokens)
    theirs = Tokenizer.from_str(json.dumps(tokenizer_json(vocab, settings)))
    return BertTokenizer(vocab, **settings.to_dict()), theirs


def check(tokenizers, texts, same_offsets=True):
    ours, theirs = tokenizers
    ids = ours.tokenize(texts)
    same, starts, ends = ours.tokenize_with_offsets(texts)
    assert ids.to_list() == same.to_list()
    places = [byte_to_char_offsets(texts, each).to_list() for each in (starts, ends)]
    encoded = theirs.encode_batch(texts, add_special_tokens=False)
    for text, row, first, last, expected in zip(
        texts, ids.to_list(), *places, encoded, strict=True
    ):
        assert row == expected.ids, text
        if same_offsets:
            assert [*zip(first, last, strict=True)] == expected.offsets, text


def is_plain(text):
    """Returns whether a text has no special token, which `tokenizers` would keep whole."""
    return not any(token in text for token in SPECIAL_TOKENS)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_generated_strings(settings, seed):
    random = np.random.default_rng(seed)
    tokens = [TOKENS[i] for i in sorted(random.choice(len(TOKENS), 5, replace=False))]
    contents = [token.content for token in tokens]
    vocab = [*VOCAB, *(text for text in contents if text not in VOCAB), "[unused7]"]
    if seed == 1:  # The first token is in place of an unused one.
        vocab = [contents[0], *vocab]
        vocab.reverse()
        vocab = [*dict.fromkeys(vocab)][::-1]
    words = [form for t in TOKENS for form in (t.content, t.content.upper(), t.content.lower())]
    words += [*"abc[]<ue中éÉx/ \n", " ", "rl", "\0", "\u200b", "zz", "[UNK"]
    texts = ["".join(random.choice(words, random.integers(0, 14))) for _ in range(300)]
    check(make(vocab, tokens, *settings), [*filter(is_plain, texts)])


@pytest.mark.parametrize("settings", [(True,), (False,), (True, False)])
def test_accents_give_the_same_ids(settings):
    """A token's offsets include the accents after it; those of `tokenizers` do not."""
    random = np.random.default_rng(0)
    words = ["[URL]", "[ÜRL]", "[url]", "ÉX", "éx", "\u0301", "u\u0308", "e", "É", " ", "ab", "<"]
    texts = ["".join(random.choice(words, random.integers(0, 14))) for _ in range(500)]
    tokens = [UserToken("[URL]", normalized=True), UserToken("ÉX", normalized=True)]
    vocab = [*VOCAB, "[URL]", "ÉX", "ü", "##ü", "\u0301", "\u0308"]
    check(make(vocab, tokens, *settings), texts, same_offsets=False)


@pytest.mark.parametrize(
    ("folder", "do_lower_case"),
    [("bert-base-uncased", True), ("bert-base-cased", False), ("bert-base-chinese", True)],
)
def test_real_text_with_tokens_at_random_places(shared_data, folder, do_lower_case):
    random = np.random.default_rng(0)
    contents = ["[URL]", "[USER]", "<ent>", "</ent>", "@-@", "xxbos"]
    tokens = [UserToken(text, normalized=index % 2 == 1) for index, text in enumerate(contents)]
    vocab = load_vocab(shared_data / "vocab" / folder / "vocab.txt")
    unused = next(i for i, token in enumerate(vocab) if token.startswith("[unused"))
    vocab[unused] = contents[0]
    vocab += contents[1:]
    texts = []
    for name in ("pride_and_prejudice.txt", "ud_ewt_dev.docs.txt", "xquad_paragraphs.en.txt"):
        lines = (shared_data / "corpus" / name).read_text(encoding="utf-8").split("\n")
        texts += [line[:500] for line in lines if line.strip() and is_plain(line)][:1500]
    for index, text in enumerate(texts):
        for _ in range(random.integers(0, 5)):
            place = random.integers(0, len(text) + 1)
            text = text[:place] + random.choice(contents) + text[place:]
        texts[index] = text
    check(make(vocab, tokens, do_lower_case), texts)


def test_examples():
    vocab = [*SPECIAL_TOKENS, "see", "##s", "[", "]", "url", "[URL]", "<e>"]
    tokenizer = BertTokenizer(vocab, user_tokens=["[URL]", "<e>"])
    ids = tokenizer.tokenize(["see[URL]s SEE<e><e>[url]", "", "[URL]", b"\xff[URL]\xff"])
    names = [[vocab[index] for index in row] for row in ids.to_list()]
    assert names == [
        ["see", "[URL]", "[UNK]", "see", "<e>", "<e>", "[", "url", "]"],
        [],
        ["[URL]"],
        ["[URL]"],
    ]


def test_special_tokens_can_be_kept_too():
    vocab = [*VOCAB, "[URL]"]
    tokenizer = BertTokenizer(vocab, keep_special_tokens=True, user_tokens=["[URL]"])
    text = "ab[MASK][URL] [SEP]c"
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    tokens = [vocab[index] for index in ids.values]
    assert tokens == ["a", "##b", "[MASK]", "[URL]", "[SEP]", "c"]
    assert [text[a:b] for a, b in zip(starts.values, ends.values, strict=True)] == [
        *("a", "b", "[MASK]", "[URL]", "[SEP]", "c")
    ]


def test_ids_without_user_tokens_do_not_change():
    texts = ["ab[URL]c", "<ent>", "\ufdd5a"]
    plain, own = BertTokenizer(VOCAB), BertTokenizer([*VOCAB, "qq"], user_tokens=["qq"])
    assert plain.tokenize(texts).to_list() == own.tokenize(texts).to_list()


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ([""], "user token '': is empty or not a string"),
        (["a b"], "user token 'a b': contains white space; expected up to 200 bytes"),
        (["[MASK]"], r"user token '\[MASK\]': is a special token of BERT; expected another"),
        (["X", "X"], "user token 'X': occurs twice"),
        (["\ufdd5"], r"contains a character from U\+FDD0 to U\+FDEF"),
        (["X" * 201], "has 201 bytes; expected up to 200 bytes"),
        (["\ud800"], "is not valid Unicode"),
        ([{"content": "X", "special": 1}], "user_tokens: special is 1; expected true or false"),
        ([{"text": "X"}], "user_tokens: has no 'content'; expected a string"),
        (["X"], "vocabulary: does not contain the user token 'X'; expected all user tokens"),
    ],
)
def test_invalid_user_tokens_are_rejected(tokens, match):
    with pytest.raises(InputError, match=match):
        BertTokenizer(VOCAB, user_tokens=tokens)


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        (["ab", "AB"], "'AB': is the same as 'ab' in normalized text"),
        (["\u200b"], "is empty in normalized text"),
        (["ΑΣ"], "has no unique form of the capital sigma in normalized text"),
    ],
)
def test_tokens_that_are_not_unique_in_normalized_text_are_rejected(contents, match):
    tokens = [UserToken(content, normalized=True) for content in contents]
    with pytest.raises(InputError, match=match):
        BertTokenizer([*VOCAB, *contents], user_tokens=tokens)
    BertTokenizer([*VOCAB, *contents], user_tokens=contents)
