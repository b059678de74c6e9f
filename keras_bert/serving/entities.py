"""A served tagger: texts in, entities with their places out; or words in, their tags out.

    text      "Jean-Paul of AT&T, U.S."           [B]
    words      Jean-Paul of AT&T , U.S.           [B, (W)]
    tags       B-PER     O  B-ORG O B-LOC         [B, (W)]    the likeliest of each word
    entities   PER "Jean-Paul" 0-9  ORG "AT&T" 13-17  LOC "U.S." 19-23                [B, E]

The words of a text are BERT's own, parted at white space, at punctuation and around each CJK
ideograph, and then joined again where corpora do not part them (`_starts_word`). Of two ways to
find them, BERT's own would ask for the tags of pieces that no training shows ("U.S.", "@user",
"Jean-Paul": the first piece of a word alone is taught), and white space alone would leave "London."
and whole sentences of Chinese as one word. Of the 3,891 entities of WNUT-17, written as running
text, the joined words cut 98.5 % into just the words of the corpus, BERT's own 96.3 %, white space
75.6 %. Apostrophes do not join: it would gain O'Hara and lose the Italie of "l'Italie" and the
Smith of "Smith's". Who parts words otherwise sends words, not texts.

B texts, W words of one, N words of all, T pieces of all, E entities of the text that has most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.serving.word_windows import word_logits
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, split_tag
from keras_bert.text.normalization import normalize_character
from keras_bert.text.tokenizer import (
    BertTokenizer,
    byte_to_char_offsets,
    bytes_of,
    row_ids,
    valid_utf8,
)

_JOINERS = "&-./@_"  # between letters or digits, without space: AT&T, Jean-Paul, AC/DC
_DIGIT_JOINERS = ",:"  # between digits: 1,000 and 7:30
_PREFIXES = "@#"  # before a letter or a digit: @user, #topic

_BYTES = [bytes([value]) for value in range(256)]


@dataclass(frozen=True)
class TaggerSettings:
    """How a served tagger reads.

    Attributes:
        max_seq_length: pieces of a window at most, with [CLS] and [SEP]; longer texts are read in
            several.
    """

    max_seq_length: int = 128


class ServedTagger(tf.Module):
    """A tagger as signatures of a SavedModel.

    Args:
        network: of a `BertTokenClassifier`.
        tokenizer: of its vocabulary.
        labels: tags of any scheme, in the order of the logits.
        settings: how it reads.

    Raises:
        InputError: windows longer than the model's positions, or without room for a piece.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: BertTokenizer,
        labels: Sequence[str],
        settings: TaggerSettings,
    ):
        super().__init__(name="tagger")
        most = network.config.max_position_embeddings
        if not 3 <= settings.max_seq_length <= most:
            raise InputError(
                f"--max_seq_length={settings.max_seq_length}: expected 3 to {most}, the model's "
                "max_position_embeddings"
            )
        self.network = network
        self.tokenizer = tokenizer
        self.labels = list(labels)
        self.settings = settings
        # What each piece of the vocabulary is, to join words by.
        vocab = tokenizer.vocab
        self._goes_on = np.array([piece.startswith("##") for piece in vocab])
        self._is_word = np.array([_is_word(piece) for piece in vocab])
        self._starts_in_digit = np.array([piece[0].isdecimal() for piece in vocab])
        self._ends_in_digit = np.array([piece[-1].isdecimal() for piece in vocab])
        self._is_joiner = np.array([piece in tuple(_JOINERS) for piece in vocab])
        self._is_digit_joiner = np.array([piece in tuple(_DIGIT_JOINERS) for piece in vocab])
        self._is_prefix = np.array([piece in tuple(_PREFIXES) for piece in vocab])
        self._is_period = np.array([piece == "." for piece in vocab])

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, of words, and of token ids."""
        text = tf.TensorSpec([None], tf.string, name="text")
        words = tf.TensorSpec([None, None], tf.string, name="words")
        return {
            "serving_default": tf.function(self.entities, input_signature=[text]),
            "words": tf.function(self.tags, input_signature=[words]),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def entities(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Finds the entities of texts.

        Args:
            text: strings [B] of any length; a byte that is not UTF-8 counts as a character.

        Returns:
            In the order of the text and padded with "", -1 and 0: `types` and `texts`, strings
            [B, E]; `starts` and `ends`, int32 [B, E], characters as Python's `str` counts them;
            `scores` float32 [B, E], the mean probability of the tags of the entity's words.
        """
        ids, *places = self.tokenizer.tokenize_with_offsets(text)
        byte_starts, byte_ends = (offsets.values for offsets in places)
        counted = valid_utf8(text)
        starts, ends = (byte_to_char_offsets(counted, offsets).values for offsets in places)
        # The piece that each word starts with, and the word that each entity does.
        word_at = tf.where(self._starts_word(ids, starts, ends))[:, 0]
        word_splits = tf.concat([word_at, ids.row_splits[-1:]], axis=0)
        words = tf.RaggedTensor.from_row_splits(
            tf.RaggedTensor.from_row_splits(ids.values, word_splits, validate=False),
            _splits_between(word_at, ids.row_splits),
            validate=False,
        )
        tags, probabilities = self._likeliest(words)
        inside, begins, kind = entity_words(self.labels, words.with_values(tags))
        entity_at = tf.where(begins)[:, 0]
        splits = _splits_between(entity_at, words.row_splits)

        count = tf.size(entity_at)
        entity = tf.where(inside, tf.cumsum(tf.cast(begins, tf.int32)) - 1, -1)
        # The first and the last piece of each entity.
        first = tf.gather(word_at, entity_at)
        last = tf.math.unsorted_segment_max(word_splits[1:] - 1, entity, count)
        scores = tf.math.unsorted_segment_mean(probabilities, entity, count)
        types = tf.gather(_kinds(self.labels), tf.gather(kind, entity_at))
        texts = _slices(
            text, row_ids(splits), tf.gather(byte_starts, first), tf.gather(byte_ends, last)
        )

        def dense(values: tf.Tensor, padding: str | int | float) -> tf.Tensor:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(
                padding
            )

        return {
            "types": dense(types, ""),
            "texts": dense(texts, ""),
            "starts": dense(tf.gather(starts, first), -1),
            "ends": dense(tf.gather(ends, last), -1),
            "scores": dense(scores, 0.0),
        }

    def tags(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tags words, as run_ner does.

        Args:
            words: strings [B, W], a sentence a row; "" is padding.

        Returns:
            `tags`, strings [B, W], in IOB2 whatever the labels are, and `scores`, float32 [B, W],
            the probability of what the model found likeliest; "" and 0 at padding.
        """
        words = tf.convert_to_tensor(words, tf.string)
        real = words != ""
        pieces = self.tokenizer.tokenize(tf.boolean_mask(words, real))
        # A word of no piece is [UNK], as in training.
        without = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = tf.fill([tf.reduce_sum(without)], self.tokenizer.unk_token_id)
        pieces = tf.concat(
            [pieces, tf.RaggedTensor.from_row_lengths(unknown, without, validate=False)], axis=1
        )
        lengths = tf.math.count_nonzero(real, axis=1)
        pieces = tf.RaggedTensor.from_row_lengths(pieces, lengths, validate=False)
        likeliest, probabilities = self._likeliest(pieces)
        inside, begins, kind = entity_words(self.labels, pieces.with_values(likeliest))
        names = [f"-{name}" if name else "" for name in _kinds(self.labels)]
        tags = tf.where(
            begins,
            tf.gather([f"B{name}" for name in names], kind),
            tf.where(inside, tf.gather([f"I{name}" for name in names], kind), OUTSIDE),
        )
        # Padding takes the value after the last word's.
        place = tf.cumsum(tf.cast(tf.reshape(real, [-1]), tf.int32), exclusive=True)
        place = tf.where(real, tf.reshape(place, tf.shape(real)), tf.size(tags))
        return {
            "tags": tf.gather(tf.concat([tags, [""]], axis=0), place),
            "scores": tf.gather(tf.concat([probabilities, [0.0]], axis=0), place),
        }

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Labels the pieces of rows that the client cut, int32 [B, S] each.

        Returns:
            `tags`, strings [B, S], the likeliest label of each piece, "" at padding; and
            `logits`, float32 [B, S, C], 0 there.
        """
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        logits = self.network(rows.input_ids, rows.segment_ids)["logits"]
        likeliest = rows.padded(1 + tf.argmax(logits, axis=-1, output_type=tf.int32))
        return {
            "tags": tf.gather(["", *self.labels], likeliest),
            "logits": rows.padded(logits),
        }

    def _likeliest(self, words: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the likeliest label of each word, int32 [N], and its probability, [N]."""
        logits = word_logits(
            self.network,
            words,
            self.settings.max_seq_length,
            self.tokenizer.cls_token_id,
            self.tokenizer.sep_token_id,
        )
        probabilities = tf.nn.softmax(logits)
        return (
            tf.argmax(logits, axis=-1, output_type=tf.int32),
            tf.reduce_max(probabilities, axis=-1),
        )

    def _starts_word(self, ids: tf.RaggedTensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Says which pieces start a word, bool [T].

        Words are joined, where nothing stands between them, around a joiner (Jean-Paul, 1,000),
        after a prefix (@user), and before the last period of initials (U.S.).

        Args:
            ids: ragged int32 [B, (pieces)].
            starts: the character that each piece starts at, int32 [T].
            ends: the character after its last, int32 [T].
        """
        opens = ~tf.gather(self._goes_on, ids.values)
        # Per word of BERT's own: its first piece, its last one, its characters.
        at = tf.where(opens)[:, 0]
        last_at = tf.concat([at, ids.row_splits[-1:]], axis=0)[1:] - 1
        first, last = tf.gather(ids.values, at), tf.gather(ids.values, last_at)
        start, end = tf.gather(starts, at), tf.gather(ends, last_at)
        text = tf.gather(row_ids(ids.row_splits), at)
        touches = (start == _before(end, -1)) & (text == _before(text, -1))

        is_unknown = first == self.tokenizer.unk_token_id
        is_word = tf.gather(self._is_word, first) | (is_unknown & (end - start > 1))
        digits = tf.gather(self._is_digit_joiner, first)
        digits &= _before(tf.gather(self._ends_in_digit, last))
        digits &= _after(tf.gather(self._starts_in_digit, first))
        joins = (tf.gather(self._is_joiner, first) | digits) & touches & _before(is_word)
        joins &= _after(touches & is_word)
        after_prefix = is_word & touches & _before(tf.gather(self._is_prefix, first))
        # "U.S.": the period before its last letter joins too.
        period = tf.gather(self._is_period, first)
        initial = is_word & ~tf.gather(self._starts_in_digit, first) & (end - start == 1)
        initial &= _before(joins & period)
        goes_on = joins | _before(joins) | after_prefix | (period & touches & _before(initial))
        return tf.tensor_scatter_nd_update(opens, at[:, tf.newaxis], ~goes_on)


def entity_words(
    labels: Sequence[str], tags: tf.RaggedTensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds entities as `tag_schemes.entities` does, for all texts at once.

    Args:
        labels: tags of any scheme.
        tags: ragged int32 [B, (W)], places in `labels`.

    Returns:
        Which words are inside an entity, bool [N]; which begin one, bool [N]; and the place of
        each one's type among the sorted types, int32 [N].
    """
    pairs = [split_tag(label) for label in labels]
    kinds = _kinds(labels)
    kind = tf.gather([kinds.index(k) if p != OUTSIDE else 0 for p, k in pairs], tags.values)
    inside = tf.gather([prefix != OUTSIDE for prefix, _ in pairs], tags.values)
    starts = tf.gather([prefix in ("B", "S") for prefix, _ in pairs], tags.values)
    ends = tf.gather([prefix in ("E", "S") for prefix, _ in pairs], tags.values)
    text = row_ids(tags.row_splits)
    goes_on = _before(inside & ~ends) & (kind == _before(kind)) & (text == _before(text, -1))
    return inside, inside & (starts | ~goes_on), kind


def _kinds(labels: Sequence[str]) -> list[str]:
    """Lists the types of entities, sorted; one that no word has if every label is O."""
    pairs = [split_tag(label) for label in labels]
    return sorted({kind for prefix, kind in pairs if prefix != OUTSIDE}) or [""]


def _is_word(piece: str) -> bool:
    """Says whether a piece starts with a letter or digit that is not a word of its own."""
    return piece[0].isalnum() and not normalize_character(piece[0], False).startswith(" ")


def _before(values: tf.Tensor, first: int = 0) -> tf.Tensor:
    """Returns at each place the value before it."""
    return tf.concat([tf.cast([first], values.dtype), values], axis=0)[:-1]


def _after(values: tf.Tensor) -> tf.Tensor:
    """Returns at each place the value after it; at the last one, False."""
    return tf.concat([values, [False]], axis=0)[1:]


def _splits_between(places: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Counts how many of the sorted places lie before each split, int64 [rows + 1]."""
    return tf.searchsorted(places, splits, out_type=tf.int64)


def _slices(text: tf.Tensor, row: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Cuts `text[row[i]][starts[i]:ends[i]]`, in bytes; a long text is never copied whole."""
    text_bytes, text_starts = bytes_of(text)
    origin = tf.cast(tf.gather(text_starts, row), tf.int32)
    cut = tf.gather(text_bytes, tf.ragged.range(origin + starts, origin + ends))
    letters = tf.gather(_BYTES, tf.cast(cut.values, tf.int32))
    return tf.strings.unsorted_segment_join(letters, row_ids(cut.row_splits), tf.size(row))
