"""Whole documents are held out, independent of their files, and none of them is trained on."""

import pytest

from data_tools.corpus import held_out
from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.held_out import HeldOut, split_documents
from keras_bert.common.errors import InputError

PROSE = Reading("prose")


def documents(count):
    return [f"Document {number} begins. It ends after {number} words." for number in range(count)]


def write(folder, texts):
    """Writes one file for each text; returns the paths."""
    folder.mkdir()
    paths = [folder / f"{number:03}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def split(paths, target, share=0.1, most=100):
    """Splits a corpus; returns the documents for training and the held-out ones."""
    split_documents(paths, PROSE, target, HeldOut(share, most))
    return [
        (target / name).read_text().removesuffix("\n\n").split("\n\n")
        for name in ("train.txt", "eval.txt")
    ]


@pytest.mark.parametrize(
    ("share", "most", "total", "expected"),
    [(0.05, 500, 1000, 50), (0.05, 20, 1000, 20), (0.05, 500, 2, 1), (0.0, 9, 50, 1), (1, 9, 2, 1)],
)
def test_number_of_held_out_documents_is_bounded(share, most, total, expected):
    assert HeldOut(share, most).count(total) == expected


def test_each_document_is_whole_and_in_one_file(tmp_path):
    train, evaluated = split(write(tmp_path / "in", documents(40)), tmp_path / "out")
    assert (len(train), len(evaluated)) == (36, 4)
    assert sorted(train + evaluated) == sorted(text.replace(". ", ".\n") for text in documents(40))


def test_choice_depends_on_the_texts_only(tmp_path):
    texts = documents(40)
    _, first = split(write(tmp_path / "a", texts), tmp_path / "first")
    together = tmp_path / "together.txt"
    together.write_text("\n\n\n".join(reversed(texts)))
    _, second = split([str(together)], tmp_path / "second")
    assert sorted(first) == sorted(second)


def test_repeated_documents_are_written_once(tmp_path):
    train, evaluated = split(write(tmp_path / "in", documents(10) * 3), tmp_path / "out", 0.5)
    assert len(train) == len(evaluated) == 5
    assert not {*train} & {*evaluated}


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["", "  \n"], "and 1 more files: no documents with text"),
        (["One document."], "000.txt: a single document with text, read as --input_format=prose"),
        (["The same."] * 3, "a single document"),
    ],
)
def test_fewer_than_two_documents_are_rejected(tmp_path, texts, found):
    paths = write(tmp_path / "in", texts)
    with pytest.raises(InputError, match="expected at least 2 different documents") as error:
        split(paths, tmp_path / "out")
    assert found in str(error.value)
    assert not (tmp_path / "out").exists()


def test_failure_while_writing_leaves_no_folder(tmp_path, monkeypatch):
    paths = write(tmp_path / "in", documents(4))
    opened = []

    def fail_when_read_again(path, reading, odd):
        opened.append(path)
        if opened.count(path) > 1 and path == paths[2]:
            raise InputError(f"{path}: cannot be read")
        return read_texts(path, reading, odd)

    monkeypatch.setattr(held_out, "read_texts", fail_when_read_again)
    with pytest.raises(InputError, match="cannot be read"):
        split(paths, tmp_path / "out")
    assert len(opened) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
