"""Counts the words of a corpus, as split by the tokenizer.

Only one batch of text and the distinct words are in memory at a time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.progress import Progress
from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS

MAX_WORD_LENGTH = 200  # the tokenizer maps longer words to [UNK]

_CHARACTERS_PER_BATCH = 1 << 20


def count_words(
    input_files: Sequence[str], reading: Reading, settings: TokenizerSettings, odd: OddInput
) -> Counter[str]:
    """Returns the number of occurrences of each word.

    User tokens and words too long for the tokenizer are not counted. `settings` are those of the
    tokenizer. Adds the counts of empty, malformed or too long input to
    `odd`. Raises an `InputError` if a file cannot be read or the corpus has no words.
    """
    start_tensorflow()
    from keras_bert.text.tokenizer import BertTokenizer
    from keras_bert.text.whole_tokens import MARKERS

    # Words do not depend on the vocabulary; this is the smallest valid one.
    user_tokens = [token.content for token in settings.user_tokens]
    tokenizer = BertTokenizer([*SPECIAL_TOKENS, *user_tokens], **settings.to_dict())
    counts: Counter[bytes] = Counter()
    with Progress("counting words", None, "sentences") as progress:
        for batch in text_batches(input_files, reading, odd):
            # Joins the texts, because the overhead per text exceeds the cost of its words.
            words = tokenizer.split_words(["\n".join(batch)]).flat_values.numpy()
            counts.update(words.tolist())
            progress.add(len(batch))
    if not counts:
        raise InputError(
            f"--input_file: no words in {input_files[0]} and the files after it; expected text"
        )
    decoded = ((word.decode(), times) for word, times in counts.items())
    return Counter(
        {
            word: times
            for word, times in decoded
            if len(word) <= MAX_WORD_LENGTH and not (user_tokens and word.startswith(MARKERS))
        }
    )


def text_batches(
    input_files: Sequence[str], reading: Reading, odd: OddInput
) -> Iterator[list[str]]:
    """Yields the sentences of files in batches; the arguments are those of `count_words`."""
    batch: list[str] = []
    size = 0
    for path in input_files:
        odd_of_file = OddInput()
        for document in read_documents(path, reading, odd_of_file):
            for sentence in document:
                batch.append(sentence)
                size += len(sentence)
                if size >= _CHARACTERS_PER_BATCH:
                    yield batch
                    batch, size = [], 0
        odd.merge(odd_of_file)
    if batch:
        yield batch
