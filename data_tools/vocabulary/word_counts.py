"""A corpus's words and how often each occurs: what a vocabulary is learnt from.

In: files, read as any corpus is (`data_tools.corpus.documents`). Out: `Counter[str]`, words as our
own tokenizer cuts them, in lower case or not. Memory holds one batch of text and the distinct
words.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from data_tools.corpus.documents import Reading, read_documents
from data_tools.corpus.odd_input import OddInput
from data_tools.progress import Progress
from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.vocabulary import SPECIAL_TOKENS

MAX_WORD_LENGTH = 200  # the tokenizer takes longer words for [UNK]

_CHARACTERS_A_BATCH = 1 << 20


def count_words(
    input_files: Sequence[str], reading: Reading, do_lower_case: bool, odd: OddInput
) -> Counter[str]:
    """Counts a corpus's words as the tokenizer cuts them.

    Args:
        input_files: the corpus.
        reading: how it is read.
        do_lower_case: whether the tokenizer lower-cases and drops accents.
        odd: counts what is odd in the files.

    Returns:
        How often each word occurs; those too long for the tokenizer are left out.

    Raises:
        InputError: for what cannot be read, or a corpus without a word.
    """
    start_tensorflow()
    from keras_bert.text.tokenizer import BertTokenizer

    # Words don't depend on the vocabulary; this is the least that a tokenizer takes.
    tokenizer = BertTokenizer(list(SPECIAL_TOKENS), do_lower_case=do_lower_case)
    counts: Counter[bytes] = Counter()
    with Progress("counting words", None, "sentences") as progress:
        for batch in _batches(input_files, reading, odd):
            # One long text: the tokenizer's work on each text costs more than that on its words.
            words = tokenizer.split_words(["\n".join(batch)]).flat_values.numpy()
            counts.update(words.tolist())
            progress.add(len(batch))
    if not counts:
        raise InputError(f"--input_file: no word in {input_files[0]} and the files after it")
    decoded = ((word.decode(), times) for word, times in counts.items())
    return Counter({word: times for word, times in decoded if len(word) <= MAX_WORD_LENGTH})


def _batches(input_files: Sequence[str], reading: Reading, odd: OddInput) -> Iterator[list[str]]:
    """Yields sentences in lots of about the same size, whatever the documents' sizes."""
    batch: list[str] = []
    size = 0
    for path in input_files:
        odd_of_file = OddInput()
        for document in read_documents(path, reading, odd_of_file):
            for sentence in document:
                batch.append(sentence)
                size += len(sentence)
                if size >= _CHARACTERS_A_BATCH:
                    yield batch
                    batch, size = [], 0
        odd.merge(odd_of_file)
    if batch:
        yield batch
