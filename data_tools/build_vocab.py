r"""A corpus in, a WordPiece vocabulary out.

    python -m data_tools.build_vocab --input_file='corpus/*.txt' --vocab_file=vocab.txt \
        --vocab_size=8000

The words are those of our own tokenizer, so every piece learnt is one that it can make. The pieces
are learnt by the trainer of the `tokenizers` package. vocab.txt holds, in Google's order: [PAD],
[unused0] ..., [UNK], [CLS], [SEP], [MASK], the characters by their frequency, the pieces in the
order in which they were learnt.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from absl import flags, logging

from data_tools.documents import INPUT_FORMATS, find_input_files, read_documents
from data_tools.progress import Progress
from keras_bert import files, program
from keras_bert.errors import InputError
from keras_bert.vocabulary import SPECIAL_TOKENS

FLAGS = flags.FLAGS

MAX_WORD_LENGTH = 200  # the tokenizer takes longer words for [UNK]

_SENTENCES_A_BATCH = 8192
_WORDS_A_LINE = 1000


def count_words(input_files: Sequence[str], input_format: str, do_lower_case: bool) -> Counter[str]:
    """Counts a corpus's words as the tokenizer cuts them.

    Args:
        input_files: the corpus.
        input_format: how it is read (`data_tools.documents`).
        do_lower_case: whether the tokenizer lower-cases and drops accents.

    Returns:
        How often each word occurs; those too long for the tokenizer are left out.

    Raises:
        InputError: for what cannot be read, or a corpus without a word.
    """
    program.start_tensorflow()
    import tensorflow as tf

    from keras_bert.tokenization import BertTokenizer

    # Words don't depend on the vocabulary; this is the least that a tokenizer takes.
    tokenizer = BertTokenizer(list(SPECIAL_TOKENS), do_lower_case=do_lower_case)
    counts: Counter[bytes] = Counter()
    with Progress("counting words", None, "sentences") as progress:
        for batch in _batches(input_files, input_format):
            words, _, times = tf.unique_with_counts(tokenizer.split_words(batch).flat_values)
            counts.update(dict(zip(words.numpy().tolist(), times.numpy().tolist(), strict=True)))
            progress.add(len(batch))
    if not counts:
        raise InputError(f"--input_file: no word in {input_files[0]} and the files after it")
    decoded = ((word.decode(), times) for word, times in counts.items())
    return Counter({word: times for word, times in decoded if len(word) <= MAX_WORD_LENGTH})


def _batches(input_files: Sequence[str], input_format: str) -> Iterator[list[str]]:
    batch: list[str] = []
    for path in input_files:
        for document in read_documents(path, input_format):
            batch += document
            if len(batch) >= _SENTENCES_A_BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


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


def learn_vocab(
    words: Counter[str], vocab_size: int, min_frequency: int = 2, num_unused: int = 0
) -> list[str]:
    """Learns a WordPiece vocabulary.

    Args:
        words: how often each word occurs.
        vocab_size: pieces wanted, special ones included; a small corpus may give fewer.
        min_frequency: how often a pair of pieces must occur to become one.
        num_unused: [unusedN] places to keep free for words to come.

    Returns:
        The vocabulary.

    Raises:
        InputError: when vocab_size has no room for the special pieces and the alphabet.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pad, *others = SPECIAL_TOKENS
    special = [pad, *(f"[unused{number}]" for number in range(num_unused)), *others]
    # At most half of the room goes to single characters: Chinese text has thousands.
    alphabet = alphabet_pieces(words, (vocab_size - len(special)) // 2, min_frequency)
    if not alphabet:
        raise InputError(
            f"--vocab_size={vocab_size}: no room for pieces beside {len(special)} special ones"
        )
    # The trainer numbers pieces as it meets them in a hash table, and numbers decide between pairs
    # of equal frequency: two runs would differ. Announced beforehand, as if they were special, the
    # characters have fixed numbers. Words with other characters are [UNK] as a whole, so they are
    # no material.
    known = {piece.removeprefix("##") for piece in alphabet if len(piece) in (1, 3)}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=special + alphabet,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(
        _lines({word: times for word, times in words.items() if known.issuperset(word)}), trainer
    )
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def _lines(words: dict[str, int]) -> Iterator[str]:
    """Repeats every word as often as it occurred: the trainer counts for itself."""
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


def build_vocab(
    input_file: str,
    vocab_file: str,
    vocab_size: int,
    do_lower_case: bool = True,
    min_frequency: int = 2,
    num_unused: int = 0,
    input_format: str = "sentences",
) -> list[str]:
    """Learns a corpus's vocabulary and writes it.

    Args:
        input_file: comma list of files, globs and directories.
        vocab_file: where the vocabulary goes. A file there is never replaced by another content.
        vocab_size: pieces wanted.
        do_lower_case: whether the tokenizer lower-cases and drops accents.
        min_frequency: how often a pair of pieces must occur to become one.
        num_unused: [unusedN] places to keep free.
        input_format: how the corpus is read.

    Returns:
        The vocabulary.

    Raises:
        InputError: for bad input, or a vocabulary file that holds something else already.
    """
    for name, value, low in (("min_frequency", min_frequency, 1), ("num_unused", num_unused, 0)):
        if value < low:
            raise InputError(f"--{name}={value}: expected at least {low}")
    try:
        os.makedirs(os.path.dirname(os.path.abspath(vocab_file)), exist_ok=True)
        if os.path.isdir(vocab_file):
            raise IsADirectoryError(0, "is a folder")
    except OSError as error:
        raise InputError(
            f"--vocab_file={vocab_file}: cannot be written ({error.strerror or error})"
        ) from None
    words = count_words(find_input_files(input_file), input_format, do_lower_case)
    vocab = learn_vocab(words, vocab_size, min_frequency, num_unused)
    content = _content(vocab)
    if os.path.exists(vocab_file):
        with open(vocab_file, "rb") as file:
            if file.read() != content:
                raise InputError(
                    f"--vocab_file={vocab_file} holds another vocabulary, on which datasets and "
                    "models may depend: expected a new name"
                )
        logging.info("%s is finished: nothing to do", vocab_file)
        return vocab
    files.write_bytes(vocab_file, content)
    if len(vocab) < vocab_size:
        logging.warning("the corpus gives %d pieces only, of %d wanted", len(vocab), vocab_size)
    total = sum(words.values())
    logging.info("%s: %d pieces from %d words", vocab_file, len(vocab), total)
    return vocab


def _content(vocab: Iterable[str]) -> bytes:
    return "".join(piece + "\n" for piece in vocab).encode()


def define_flags() -> None:
    """Defines this program's flags."""
    flags.DEFINE_string("input_file", None, "Comma list of text files, globs and folders.")
    flags.DEFINE_string("vocab_file", None, "File to write the vocabulary to.")
    flags.DEFINE_integer("vocab_size", 30000, "Pieces wanted, special ones included.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case, for uncased models.")
    flags.DEFINE_integer("min_frequency", 2, "How often a pair must occur to become a piece.")
    flags.DEFINE_integer("num_unused", 0, "[unusedN] places to keep free.")
    flags.DEFINE_enum("input_format", "sentences", INPUT_FORMATS, "As in create_pretraining_data.")
    program.require("input_file", "vocab_file")


def main(argv: Sequence[str]) -> None:
    """Writes the vocabulary that the flags describe."""
    program.no_arguments(argv)
    build_vocab(
        FLAGS.input_file,
        FLAGS.vocab_file,
        FLAGS.vocab_size,
        FLAGS.do_lower_case,
        FLAGS.min_frequency,
        FLAGS.num_unused,
        FLAGS.input_format,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
