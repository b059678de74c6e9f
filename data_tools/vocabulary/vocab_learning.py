"""Learns a WordPiece vocabulary with the byte-pair trainer of the `tokenizers` package.

The vocabulary has the order of Google's: [PAD], [unused0] ..., [UNK], [CLS], [SEP], [MASK], the
characters by frequency, then the other tokens in the order in which they were learned, then the
user's own tokens. The tokenizer, which matches the longest token first, can produce each of them.
The same counts give the same vocabulary in every process.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from keras_bert.common.errors import InputError
from keras_bert.text.vocabulary import SPECIAL_TOKENS

# The tokenizer accepts tokens of up to 256 bytes, and a character has up to four.
_MAX_TOKEN_LENGTH = 60
_WORDS_PER_LINE = 1000


def learn_vocab(
    words: Counter[str],
    vocab_size: int,
    min_frequency: int = 2,
    num_unused: int = 0,
    pad_to_multiple_of: int = 1,
    user_tokens: Sequence[str] = (),
) -> list[str]:
    """Learns a WordPiece vocabulary from word counts; returns the tokens in id order.

    `words` maps each word to its number of occurrences; the other arguments are those of
    `build_vocab.VocabSettings`. A small corpus may give fewer than `vocab_size` tokens.

    Raises:
        InputError: if vocab_size is too small for the special tokens and the alphabet.
    """
    check_vocab_size(vocab_size, num_unused + len(user_tokens))
    num_special = len(SPECIAL_TOKENS) + num_unused + len(user_tokens)
    limit = alphabet_limit(vocab_size, num_unused + len(user_tokens))
    alphabet = alphabet_tokens(words, limit, min_frequency)
    if not alphabet:
        raise InputError(
            f"--vocab_size={vocab_size}: no character of the corpus becomes a token: each occurs "
            f"fewer than --min_frequency={min_frequency} times, or does not fit in addition to "
            f"{num_special} special tokens; expected a larger size, a lower --min_frequency or "
            "more text"
        )
    learned = _learn_tokens(words, alphabet, vocab_size - num_special, min_frequency)
    # A user token that is also learned needs one place only.
    appended = [token for token in user_tokens if token not in {*learned}]
    size = len(SPECIAL_TOKENS) + num_unused + len(learned) + len(appended)
    num_unused += -size % pad_to_multiple_of
    pad, *others = SPECIAL_TOKENS
    unused = (f"[unused{number}]" for number in range(num_unused))
    return [pad, *unused, *others, *learned, *appended]


def check_vocab_size(vocab_size: int, num_unused: int) -> None:
    """Raises an InputError if a vocabulary size leaves no room for a single-character token."""
    num_special = len(SPECIAL_TOKENS) + num_unused
    if alphabet_limit(vocab_size, num_unused) < 1:
        raise InputError(
            f"--vocab_size={vocab_size}: no room for tokens in addition to {num_special} special "
            f"tokens; expected at least {num_special + 2}"
        )


def alphabet_limit(vocab_size: int, num_unused: int) -> int:
    """Returns the maximum number of single-character tokens: half of all learned tokens.

    Without this limit, the thousands of characters of Chinese text could fill the vocabulary.
    """
    return (vocab_size - len(SPECIAL_TOKENS) - num_unused) // 2


def alphabet_tokens(words: Counter[str], max_tokens: int, min_frequency: int) -> list[str]:
    """Chooses the characters that become tokens, `c` at the start of a word and `##c` inside it.

    Returns at most `max_tokens` tokens, the most frequent character first. Characters that occur
    less than `min_frequency` times become [UNK], unless they are ASCII.
    """
    characters: Counter[str] = Counter()
    inner: set[str] = set()
    for word, times in words.items():
        for character in word:
            characters[character] += times
        inner.update(word[1:])
    tokens: list[str] = []
    for character, times in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        forms = [character] + ["##" + character] * (character in inner)
        is_frequent = times >= min_frequency or character.isascii()
        if is_frequent and len(tokens) + len(forms) <= max_tokens:
            tokens += forms
    return tokens


def _learn_tokens(
    words: Counter[str], alphabet: list[str], max_tokens: int, min_frequency: int
) -> list[str]:
    """Returns the alphabet and the learned tokens, at most `max_tokens` in total."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    # The trainer assigns ids in hash-table order and uses them to choose between pairs of equal
    # frequency, so two runs could differ. Passing the characters as special tokens fixes their ids.
    # A word with any other character is [UNK] as a whole, so such words are not used.
    known = {token.removeprefix("##") for token in alphabet if len(token) in (1, 3)}
    trainer = trainers.BpeTrainer(
        vocab_size=max_tokens,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        max_token_length=_MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(
        _lines({word: times for word, times in words.items() if known.issuperset(word)}), trainer
    )
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def _lines(words: dict[str, int]) -> Iterator[str]:
    """Yields lines of text in which each word of {word: count} is repeated `count` times.

    The trainer does not accept counts.
    """
    line: list[str] = []
    for word in sorted(words):
        times = words[word]
        while times:
            taken = min(times, _WORDS_PER_LINE - len(line))
            line += [word] * taken
            times -= taken
            if len(line) == _WORDS_PER_LINE:
                yield " ".join(line)
                line = []
    yield " ".join(line)
