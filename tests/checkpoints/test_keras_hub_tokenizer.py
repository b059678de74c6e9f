"""KerasHub's token ids for our presets: equal to ours, except for documented causes.

docs/concepts/tokenizer.md describes the causes and has the counts.
"""

import dataclasses
import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.conversion import Changes, convert
from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS
from tests.checkpoints.test_tokenizer_json import SETTINGS, vocab_of
from tests.checkpoints.tokenizer_differences import ALL, count_by_cause, parts_by_cause

FILES = (
    *("xquad_paragraphs.en.txt", "pride_and_prejudice.txt", "wikitext-2/valid.txt"),
    *("de/ud_gsd_dev.sents.txt", "de/xquad_paragraphs.txt", "ar/ud_pud.sents.txt"),
    *("ar/xquad_paragraphs.txt", "hi/ud_pud.sents.txt", "hi/xquad_paragraphs.txt"),
    *("ja/ud_gsd_dev.sents.txt", "zh/ud_gsd_dev.sents.txt", "zh/xquad_paragraphs.txt"),
)
LINES_PER_FILE = 500
MAX_BYTES_PER_WORD = 100  # KerasHub makes longer words [UNK].
# The 12 combinations have 8 effects, because a missing strip_accents is do_lower_case.
ALL_SETTINGS = [*dict.fromkeys(TokenizerSettings(*settings) for settings in SETTINGS)]

LONG_WORDS, FOLDED, MARKS = "long words", "case folding", "marks"
CONTROLS, REPLACEMENT = "control characters", "U+FFFD"
CAUSES = (ALL, FOLDED, MARKS, LONG_WORDS, CONTROLS, REPLACEMENT)
# do_lower_case, whether accents are stripped, tokenize_chinese_chars -> texts that differ.
COUNTS = {
    (True, True, True): (844, 843, 0, 1, 0, 1),
    (True, True, False): (905, 843, 0, 84, 0, 1),
    (True, False, True): (967, 941, 27, 1, 0, 1),
    (True, False, False): (1028, 941, 27, 84, 0, 1),
    (False, True, True): (2, 0, 0, 1, 0, 1),
    (False, True, False): (85, 0, 0, 84, 0, 1),
    (False, False, True): (2, 0, 0, 1, 0, 1),
    (False, False, False): (85, 0, 0, 84, 0, 1),
}


class Preset:
    """A preset with a tiny model, and our tokenizer of it."""

    def __init__(self, path: Path):
        self.path, checkpoint = path, open_checkpoint(path)
        self.settings = checkpoint.tokenizer_settings
        self._tokenizer = BertTokenizer(checkpoint.vocab, **self.settings.to_dict())

    def ids(self, texts: Sequence[str], is_limited: bool = False) -> list[list[int]]:
        """Returns our ids; `is_limited` makes the words [UNK] that KerasHub makes [UNK]."""
        words = self._tokenizer.split_words(tf.constant(texts))
        values = words.values
        if is_limited:
            values = tf.where(tf.strings.length(values) > MAX_BYTES_PER_WORD, "[UNK]", values)
        return words.with_values(self._tokenizer.tokenize_words(values)).merge_dims(1, 2).to_list()

    def causes(self, alone: Sequence[str], characters: Sequence[str]) -> dict[str, frozenset[str]]:
        """Returns the causes of the characters that differ `alone`, and of combined characters."""
        controls = {c for c in alone if unicodedata.category(c) in ("Cc", "Cf")}
        causes = {CONTROLS: controls, REPLACEMENT: {"\ufffd"}}
        if self.settings.do_lower_case:
            causes[FOLDED] = {c for c in alone if self._is_folded(c)} - controls | {*"Σς"}
            if not self.settings.strips_accents:
                marks = {c for c in characters if unicodedata.combining(c)}
                causes[MARKS] = marks - causes[FOLDED]
        return {cause: frozenset(members) for cause, members in causes.items()}

    def _is_folded(self, character: str) -> bool:
        """Returns whether NFKC and case folding give another result than lower-casing."""
        lower = character.lower()
        if self.settings.strips_accents:
            character, lower = _without_accents(character), _without_accents(lower)
        folded = unicodedata.normalize("NFKC", character).casefold()
        return unicodedata.normalize("NFKC", folded) != lower


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFD", text)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn")


class KerasHub:
    """Writes presets, and tokenizes texts with KerasHub.

    Args:
        run: the fixture `run_in_peers`.
        tiny: the fixture `tiny`.
        folder: the folder for all files.
    """

    def __init__(self, run: Callable[..., None], tiny: Any, folder: Path):
        self._run, self._tiny, self._folder = run, tiny, folder
        self._names = map("preset-{}".format, itertools.count())

    def write_preset(self, vocab: Sequence[str], settings: TokenizerSettings) -> Preset:
        """Converts a model directory with this tokenizer to a preset, and opens the preset."""
        config = dataclasses.replace(self._tiny.config, vocab_size=len(vocab))
        description = ModelDescription(config, vocab, settings)
        path = self._folder / next(self._names)
        source = path.with_suffix(".model")
        save_model_directory(source, self._tiny.make("encoder", config), description)
        convert(source, path, "keras_hub")
        preset = Preset(path)
        assert preset.settings == settings
        return preset

    def ids(self, *texts: tuple[Preset, Sequence[str]]) -> list[list[list[int]]]:
        """Returns KerasHub's ids for texts with a preset; its two implementations must agree."""
        given, found = self._folder / "texts.json", self._folder / "ids.json"
        given.write_text(json.dumps([[str(preset.path), own] for preset, own in texts]))
        self._run("tokenize_keras_hub.py", given, found)
        ids = json.loads(found.read_text())
        for each in ids:
            assert each["python"] == each["tensorflow"]
        return [each["python"] for each in ids]


@pytest.fixture(scope="module")
def keras_hub(tiny, run_in_peers, tmp_path_factory) -> KerasHub:
    return KerasHub(run_in_peers, tiny, tmp_path_factory.mktemp("keras_hub"))


@pytest.fixture(scope="module")
def texts(shared_data) -> list[str]:
    lines = []
    for name in FILES:
        content = (shared_data / "corpus" / name).read_text(encoding="utf-8").split("\n")
        lines += [line[:1000] for line in content if line.strip()][:LINES_PER_FILE]
    return lines


def differ(found: Sequence, expected: Sequence) -> list[bool]:
    return [one != other for one, other in zip(found, expected, strict=True)]


def test_differences_on_real_text_have_known_causes(keras_hub, texts):
    vocab, characters = vocab_of(texts), sorted({*"".join(texts)})
    presets = [keras_hub.write_preset(vocab, settings) for settings in ALL_SETTINGS]
    alone = [f"a{character}b" for character in characters]
    found = keras_hub.ids(*((preset, [*texts, *alone]) for preset in presets))
    counts, parts = [], []
    for preset, theirs in zip(presets, found, strict=True):
        ours, limited = preset.ids(texts), preset.ids(texts, is_limited=True)
        is_long = Counter({LONG_WORDS: sum(differ(ours, limited))})
        counts.append(is_long + Counter({ALL: sum(differ(theirs[: len(texts)], ours))}))
        are_different = differ(theirs[len(texts) :], preset.ids(alone))
        causes = preset.causes([*itertools.compress(characters, are_different)], characters)
        are_different = differ(theirs[: len(texts)], limited)
        parts.append(parts_by_cause([*itertools.compress(texts, are_different)], causes))
    of_parts = [[part.text for part in own] for own in parts]
    found = keras_hub.ids(*zip(presets, of_parts, strict=True))
    for index, preset in enumerate(presets):
        are_different = differ(found[index], preset.ids(of_parts[index], is_limited=True))
        size = len({part.index for part in parts[index]})
        counts[index] += count_by_cause(size, parts[index], are_different)
    assert len(texts) == 4700
    for preset, own in zip(presets, counts, strict=True):
        expected = COUNTS[tuple(preset.settings.effective().values())[:3]]
        assert own == Counter(dict(zip(CAUSES, expected, strict=True)))


def test_examples_of_differences(keras_hub):
    examples = {
        "a\u00a0b": (["[UNK]"], ["a", "b"]),
        "a\u200bb": (["a", "b"], ["a", "##b"]),
        "c" * 101: (["[UNK]"], ["c", *["##c"] * 100]),
        "aß": (["a", "##s", "##s"], ["a", "##ß"]),
        "½": (["1", "##⁄", "##2"], ["½"]),
        "…": ([".", "##.", "##."], ["…"]),
        "中，": (["中", ","], ["中", "，"]),
        "ΑΣ": (["α", "##σ"], ["α", "##ς"]),
    }
    vocab = vocab_of([*examples, "s1⁄2.,ς"])
    [found] = keras_hub.ids(
        (preset := keras_hub.write_preset(vocab, TokenizerSettings()), [*examples])
    )
    for theirs, ours, expected in zip(
        found, preset.ids([*examples]), examples.values(), strict=True
    ):
        assert tuple([vocab[index] for index in row] for row in (theirs, ours)) == expected


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_user_tokens_are_found_in_keras_hub(keras_hub, texts, do_lower_case):
    random = np.random.default_rng(0)
    # The longest token is taken of those that start at the same character.
    tokens = ["[U", "[URL]", "[USER]", "<ent>", "</ent>", "@-@", "xxbos"]
    plain = [text for text in texts if text.isascii()]
    assert len(plain) == 1140
    given = []
    for text in plain:
        for _ in range(random.integers(0, 5)):
            place = random.integers(0, len(text) + 1)
            text = text[:place] + random.choice(tokens) + text[place:]
        given.append(text)
    tokens.append("ÉX")
    vocab = [*vocab_of(plain), *tokens]
    preset = keras_hub.write_preset(vocab, TokenizerSettings(do_lower_case, user_tokens=tokens))
    odd = ["[MASK]", "XXBOS", "ÉX"]
    [theirs] = keras_hub.ids((preset, [*given, *odd]))
    assert theirs[: len(given)] == preset.ids(given)
    in_lower_case = [["[MASK]"], ["xxbos"], ["e", "##x"]]
    cased = [["[MASK]"], ["X", "##X", "##B", "##O", "##S"], ["ÉX"]]
    found = [[vocab[index] for index in row] for row in theirs[len(given) :]]
    assert found == (in_lower_case if do_lower_case else cased)
    assert [vocab[row[-1]] for row in preset.ids(odd)] == [
        "]",
        "##s" if do_lower_case else "##S",
        "ÉX",
    ]


def test_presets_that_keras_hub_saves_lack_some_settings(keras_hub, tmp_path):
    vocab = [*SPECIAL_TOKENS, "a", "##b", "[URL]", "[U"]
    tokens = ["[URL]", "[U"]
    saved = {
        TokenizerSettings(False, True, False, tokens): TokenizerSettings(False, True, True, tokens),
        TokenizerSettings(True, False, True, tokens): TokenizerSettings(True, user_tokens=tokens),
    }
    presets = [keras_hub.write_preset(vocab, settings) for settings in saved]
    keras_hub.ids(*((preset, ["a"]) for preset in presets))
    for preset, settings in zip(presets, saved.values(), strict=True):
        path = Path(f"{preset.path}.saved")
        assert Preset(path).settings == settings
        own = preset.settings.effective()
        restored = {key: own[key] for key in ("strip_accents", "tokenize_chinese_chars")}
        convert(path, tmp_path / path.name, "keras_hub", Changes(tokenizer=restored))
        assert Preset(tmp_path / path.name).settings == preset.settings
