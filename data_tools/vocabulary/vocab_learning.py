"""Learns a WordPiece vocabulary from words and their counts.

The pieces are learnt by the byte-pair trainer of the `tokenizers` package, which is what its
WordPiece trainer is, too. The vocabulary holds, in Google's order: [PAD], [unused0] ..., [UNK],
[CLS], [SEP], [MASK], the characters by their frequency, the pieces in the order in which they were
learnt. The same counts give the same vocabulary in every process.

Greedy longest match reaches every piece. One that begins a word is made of the word that it is.
`##x` is made of any piece that begins no longer piece, with x behind it: the match stops before x.
"""

from collections import Counter
from collections.abc import Iterator

from keras_bert.common.errors import InputError
from keras_bert.text.vocabulary import SPECIAL_TOKENS

# The tokenizer takes pieces of up to 256 bytes, and a character has up to four.
_MAX_PIECE_LENGTH = 60
_WORDS_A_LINE = 1000


def learn_vocab(
    words: Counter[str],
    vocab_size: int,
    min_frequency: int = 2,
    num_unused: int = 0,
    pad_to_multiple_of: int = 1,
) -> list[str]:
    """Learns a WordPiece vocabulary.

    Args:
        words: how often each word occurs.
        vocab_size: pieces wanted, special ones included; a small corpus may give fewer.
        min_frequency: how often a pair of pieces must occur to become one.
        num_unused: [unusedN] places to keep free for words to come.
        pad_to_multiple_of: more [unusedN] places are added up to a multiple of this.

    Returns:
        The vocabulary.

    Raises:
        InputError: when vocab_size has no room for the special pieces and the alphabet.
    """
    num_special = len(SPECIAL_TOKENS) + num_unused
    alphabet = alphabet_pieces(words, alphabet_room(vocab_size, num_unused), min_frequency)
    if not alphabet:
        raise InputError(
            f"--vocab_size={vocab_size}: no room for pieces beside {num_special} special ones"
        )
    learnt = _learn_pieces(words, alphabet, vocab_size - num_special, min_frequency)
    num_unused += -(num_special + len(learnt)) % pad_to_multiple_of
    pad, *others = SPECIAL_TOKENS
    return [pad, *(f"[unused{number}]" for number in range(num_unused)), *others, *learnt]


def alphabet_room(vocab_size: int, num_unused: int) -> int:
    """Returns how many pieces may be single characters: half, as Chinese text has thousands.

    Args:
        vocab_size: pieces wanted, special ones included.
        num_unused: [unusedN] places to keep free.
    """
    return (vocab_size - len(SPECIAL_TOKENS) - num_unused) // 2


def alphabet_pieces(words: Counter[str], most: int, min_frequency: int) -> list[str]:
    """Chooses the characters that become pieces, `c` at a word's start and `##c` within.

    Args:
        words: how often each word occurs.
        most: most pieces to choose.
        min_frequency: a rarer character is left to [UNK], unless it is one of ASCII.

    Returns:
        The pieces, the most frequent character first.
    """
    characters: Counter[str] = Counter()
    inner: set[str] = set()
    for word, times in words.items():
        for character in word:
            characters[character] += times
        inner.update(word[1:])
    pieces: list[str] = []
    for character, times in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        forms = [character] + ["##" + character] * (character in inner)
        if (times >= min_frequency or character.isascii()) and len(pieces) + len(forms) <= most:
            pieces += forms
    return pieces


def _learn_pieces(
    words: Counter[str], alphabet: list[str], most: int, min_frequency: int
) -> list[str]:
    """Returns the alphabet and the pieces learnt, `most` of them together at most."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    # The trainer numbers pieces as it meets them in a hash table, and numbers decide between pairs
    # of equal frequency: two runs would differ. Announced beforehand, as if they were special, the
    # characters have fixed numbers. Words with other characters are [UNK] as a whole, so they are
    # no material.
    known = {piece.removeprefix("##") for piece in alphabet if len(piece) in (1, 3)}
    trainer = trainers.BpeTrainer(
        vocab_size=most,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        max_token_length=_MAX_PIECE_LENGTH,
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
    """Repeats every word as often as it occurred: the trainer takes no counts."""
    line: list[str] = []
    for word in sorted(words):
        times = words[word]
        while times:
            taken = min(times, _WORDS_A_LINE - len(line))
            line += [word] * taken
            times -= taken
            if len(line) == _WORDS_A_LINE:
                yield " ".join(line)
                line = []
    yield " ".join(line)
