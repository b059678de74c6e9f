"""Fixtures of the data tool tests: text of made-up words, its vocabulary, and their files."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.settings import Settings
from keras_bert.text.vocabulary import SPECIAL_TOKENS

WORDS = [first + second for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u")]
# Settings of a tokenizer, and its tokens of "Höhe 北京".
TOKENIZERS = [
    ({}, {"hohe", "北", "京"}),
    ({"strip_accents": False}, {"höhe", "北", "京"}),
    ({"do_lower_case": False, "strip_accents": True}, {"Hohe", "北", "京"}),
    ({"tokenize_chinese_chars": False}, {"hohe", "北京"}),
]


def changes(settings: Settings) -> dict[str, object]:
    """Returns the settings that are not the default, by name, which are flags of the program."""
    default = Settings().to_dict()
    return {name: value for name, value in settings.to_dict().items() if value != default[name]}


@pytest.fixture(scope="session")
def vocab() -> list[str]:
    """Returns a vocabulary of every word, two endings and the full stop."""
    return [*SPECIAL_TOKENS, *WORDS, "##ba", "##da", "."]


@pytest.fixture(scope="session")
def corpus() -> Callable[..., str]:
    """Returns a function that makes text of n documents, with 20 sentences per document."""

    def make(num_documents: int, seed: int = 0) -> str:
        rng = random.Random(seed)

        def sentence() -> str:
            words = [
                rng.choice(WORDS) + rng.choice(["", "", "ba"]) for _ in range(rng.randint(3, 12))
            ]
            return " ".join(words) + " ."

        documents = ["\n".join(sentence() for _ in range(20)) for _ in range(num_documents)]
        return "\n\n".join(documents) + "\n"

    return make


@pytest.fixture
def files(tmp_path, corpus, vocab) -> dict[str, str]:
    """Returns the input, vocabulary and output paths as arguments of create_pretraining_data."""
    (tmp_path / "corpus.txt").write_text(corpus(30))
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    return {
        "input_file": str(tmp_path / "corpus.txt"),
        "output_dir": str(tmp_path / "out"),
        "vocab_file": str(tmp_path / "vocab.txt"),
    }


@pytest.fixture(scope="session")
def contents() -> Callable[..., dict[str, bytes]]:
    """Returns a function that reads every file of a folder into a dict."""

    def read(folder) -> dict[str, bytes]:
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return read


@pytest.fixture
def folder(files, tmp_path, corpus):
    """Creates a folder with the corpus in several files, one of which has an invalid byte."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(corpus(8, seed=number))
    (folder / "odd.txt").write_bytes(b"ba \xff da\n" + corpus(1, seed=9).encode())
    return files | {"input_file": str(folder)}


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads content in a format: (documents, counts of odd input)."""

    def read(content, input_format, name="corpus", **reading):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        odd = OddInput()
        documents = list(read_documents(str(path), Reading(input_format, **reading), odd))
        return documents, {kind: entry["count"] for kind, entry in odd.items()}

    return read
