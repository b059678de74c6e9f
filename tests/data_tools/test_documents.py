"""Streaming documents out of files: formats, line ends, archives, bad bytes."""

import bz2
import gzip
import lzma

import pytest

from data_tools.documents import find_input_files, read_documents
from keras_bert.errors import InputError


@pytest.fixture
def write(tmp_path):
    def write(content, name="corpus.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_a_line_is_a_sentence_and_a_blank_line_ends_a_document(write):
    path = write("One.\nTwo.\n\n\nThree.\n  \t\n\u3000\nFour.")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three."], ["Four."]]


@pytest.mark.parametrize("name", ["a.txt", "a"])
def test_crlf_ends_read_as_lf_ends(write, name):
    path = write("One.\r\nTwo.\r\n\r\nThree.\r\n", name)
    assert list(read_documents(path)) == [["One.", "Two."], ["Three."]]


def test_only_line_feeds_end_lines(write):
    path = write("a\u2028b\x0bc\x0cd\u0085e\nf\n")
    assert list(read_documents(path)) == [["a\u2028b\x0bc\x0cd\u0085e", "f"]]


def test_a_byte_order_mark_is_dropped(write):
    assert list(read_documents(write(b"\xef\xbb\xbfOne.\nTwo.\n"))) == [["One.", "Two."]]


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed_files(write, suffix, pack):
    path = write(pack(b"One.\nTwo.\n\nThree.\n"), f"a.txt.{suffix}")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three."]]


def test_a_cut_archive_is_refused(write):
    path = write(gzip.compress(b"One.\nTwo.\n" * 1000)[:-20], "a.gz")
    with pytest.raises(InputError, match=r"a\.gz: broken archive"):
        list(read_documents(path))


def test_text_named_gz_is_refused(write):
    with pytest.raises(InputError, match=r"a\.gz: broken archive"):
        list(read_documents(write("One.\nTwo.\n", "a.gz")))


@pytest.mark.parametrize("input_format", ["sentences", "prose"])
def test_bytes_that_are_not_utf8_are_refused_with_file_and_line(write, input_format):
    path = write(b"One.\nTwo.\nThr\xe9e.\n")
    with pytest.raises(InputError, match=r"corpus\.txt line 3: not UTF-8 \(byte 0xe9 at offset 3"):
        list(read_documents(path, input_format))


def test_prose_paragraphs_are_joined_and_split_into_sentences(write):
    path = write("It was a dark\nnight. The rain\r\nfell.\n\n  Then it\nstopped.\n")
    assert list(read_documents(path, "prose")) == [
        ["It was a dark night.", "The rain fell.", "Then it stopped."]
    ]


def test_prose_documents_end_at_two_blank_lines_and_at_form_feeds(write):
    path = write("A one.\n\nA two.\n\n\nB one.\n\x0cC one.\nC two.\x0c\nD one.\n")
    assert list(read_documents(path, "prose")) == [
        ["A one.", "A two."],
        ["B one."],
        ["C one.", "C two."],
        ["D one."],
    ]


def test_prose_reads_a_novel_by_its_chapters(shared_data):
    novel = shared_data / "corpus/pride_and_prejudice.txt"
    documents = list(read_documents(str(novel), "prose"))
    assert sum(document[0].startswith("Chapter") for document in documents) == 61
    opening = next(document for document in documents if document[0].startswith("Chapter 1"))
    assert opening[1] == (
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife."
    )
    assert "Mr. Bennet replied that he had not." in opening


def test_input_file_takes_files_globs_and_folders(write, tmp_path, monkeypatch):
    (tmp_path / "folder/.hidden").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.md", "folder/d.txt", "folder/.e", "folder/.hidden/f.txt"):
        write("x", name)
    monkeypatch.chdir(tmp_path)
    assert find_input_files("c.md,*.txt") == ["c.md", "a.txt", "b.txt"]
    assert find_input_files("folder, b.txt,b.txt") == ["folder/d.txt", "b.txt"]
    assert find_input_files("**/*.txt") == ["a.txt", "b.txt", "folder/d.txt"]


@pytest.mark.parametrize("name", ["one,two.txt", "a[1].txt"])
def test_a_file_may_have_a_comma_or_a_bracket_in_its_name(write, name):
    path = write("x", name)
    assert find_input_files(path) == [path]


@pytest.mark.parametrize("patterns", ["nowhere.txt", "nowhere/*.txt", "", ","])
def test_a_missing_corpus_is_refused(patterns):
    with pytest.raises(InputError, match="--input_file"):
        find_input_files(patterns)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file at"):
        find_input_files(str(tmp_path))
