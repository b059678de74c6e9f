"""Tests of reading corpora: files, lines, odd input, prose, and held-out documents."""

import bz2
import gzip
import io
import lzma
import os
import textwrap
import tracemalloc

import pytest
import zstandard

from data_tools import corpus, formats, lines, sentences
from data_tools.corpus import Reading, find_input_files, split_documents
from data_tools.lines import OddInput
from keras_bert.errors import InputError


def read_documents(path, input_format="sentences", odd=None, **reading):
    odd = OddInput() if odd is None else odd
    return [*corpus.read_documents(path, Reading(input_format, **reading), odd)]


@pytest.fixture
def write(tmp_path):
    def write(content, name="corpus.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_line_is_a_sentence_and_blank_line_ends_a_document(write):
    text = "\ufeffOne.\nTw\0o.\n\n\nThree.\n  \t\n\u3000\nFour."
    for content in (text, text.replace("\n", "\r\n")):
        assert read_documents(write(content)) == [["One.", "Tw\0o."], ["Three."], ["Four."]]


PACKERS = {"gz": gzip.compress, "bz2": bz2.compress}
PACKERS |= {"xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_archives(write, suffix):
    pack = PACKERS[suffix]
    several = pack(b"One.\nTw") + pack(b"o.\n\nThree.\n")
    path = write(several, f"a.txt.{suffix.upper()}")
    assert read_documents(path) == [["One.", "Two."], ["Three."]]
    for content in (b"One.\nTwo.\n", several[:-9], several + b"\0" * 9, several + b"notes\n" * 9):
        with pytest.raises(InputError, match=rf"a\.{suffix}: broken archive: \w+"):
            read_documents(write(content, f"a.{suffix}"))


@pytest.mark.parametrize("suffix", PACKERS)
def test_large_archive_is_decompressed_in_small_parts(write, suffix):
    path = write(PACKERS[suffix](bytes(50_000_000)), f"a.{suffix}")
    with open(path, "rb") as file:
        tracemalloc.start()
        total = sum(map(len, lines.read_blocks(path, file)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == 50_000_000
    assert peak < 40e6


@pytest.mark.parametrize("input_format", ["sentences", "prose"])
def test_few_undecodable_bytes_are_replaced_and_counted(write, caplog, input_format):
    text = b"Good one.\n" * 15 + b"Caf\xe9 \xff\xfe.\n" + b"Good two.\n" * 15 + b"\xe9.\n"
    odd = OddInput()
    path = write(b"\xef\xbb\xbf" + text)
    (document,) = read_documents(path, input_format, odd)
    assert document[15] == "Caf\ufffd \ufffd\ufffd."
    places = [(16, 3 + 150 + 3, "0xe9"), (32, 3 + len(text) - 3, "0xe9")]
    assert odd == {
        "undecodable_bytes": {
            "count": 4,
            "files": 1,
            "first": [{"file": path, "line": n, "offset": o, "what": w} for n, o, w in places],
        }
    }
    odd.log()
    assert (
        f"{path}: undecodable bytes: 4, the first at line 16, byte offset 156 (0xe9); replaced by "
        "U+FFFD, which the tokenizer drops" in caplog.text
    )
    with pytest.raises(InputError, match=r" line 16: .*: more than --max_bad_line_share=0 allows"):
        read_documents(path, input_format, max_bad_line_share=0)
    with pytest.raises(
        InputError,
        match=r"corpus\.txt line 3: not UTF-8 \(byte 0xe9 at offset 3 of the line, 13 of the "
        r"file\): 1 of 3 lines are bad, more than --max_bad_line_share=0\.1 allows$",
    ):
        read_documents(write(b"One.\nTwo.\nThr\xe9e.\n"), input_format)


def test_utf16_error_names_the_encoding(write):
    with pytest.raises(InputError, match=r"the byte order mark of UTF-16; expected UTF-8"):
        read_documents(write("\ufeffOne.\nTwo.\n".encode("utf-16-le")))


@pytest.mark.parametrize("end", ["", "\n"])
def test_long_lines_are_split_at_white_space_and_counted_once(monkeypatch, end):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    text = "One.\nThis is rather a long line, i.e. more than twenty bytes.\nThree."
    source = lines.Lines("a.txt", 0.1, io.BytesIO((text + end).encode()), 20)
    parts = [(line.content.decode(), line.number, line.is_partial) for line in source.lines()]
    assert "".join(text for text, _, _ in parts) == text.replace("\n", "")
    assert all(len(text) <= 20 for text, _, _ in parts)
    assert parts[:2] == [("One.", 1, False), ("This is rather a ", 2, True)]
    assert parts[-1] == ("Three.", 3, False)
    assert source.odd["long_lines"]["count"] == 1
    source = lines.Lines("a.txt", 0, io.BytesIO(("é文😀" * 30).encode()), 20)
    parts = [source.decode(line) for line in source.lines()]
    assert "".join(parts) == "é文😀" * 30
    assert all(15 < len(part.encode()) <= 20 for part in parts[:-1])


@pytest.mark.parametrize("blank", [" ", "\u3000"])
@pytest.mark.parametrize(
    ("end", "added"), [("", []), ("\nThree.\n", ["Three."]), ("end\nThree.\n", ["end", "Three."])]
)
def test_white_space_inside_a_long_line_does_not_end_a_document(
    write, monkeypatch, blank, end, added
):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    path = write("One.\nTwo." + blank * 90 + end)
    assert read_documents(path) == [["One.", "Two.", *added]]


def test_document_of_very_many_lines_is_split_into_parts(write, monkeypatch):
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_SENTENCES", 1000)
    monkeypatch.setattr(formats, "BLOCK_BYTES", 4096)
    for input_format, text in (
        ("sentences", "w17\n" * 10_000),
        ("prose", "He went. " * 9 + "\n\n" + ("It is. " * 100 + "\n\n") * 100),
    ):
        odd = OddInput()
        parts = read_documents(write(text), input_format, odd)
        assert odd["long_documents"]["count"] == 1
        assert len(parts) > 4
        assert max(map(len, parts)) < 1000 + 4096
    assert len(read_documents(write("w17\n" * 900 + "\n" + "w17\n" * 900))) == 2


@pytest.mark.slow
def test_file_without_line_ends_is_streamed(write):
    path = write(gzip.compress(b"words " * 4_000_000, 1), "a.gz")  # 24 MB
    tracemalloc.start()
    try:
        odd = OddInput()
        num_words = sum(
            sentence.count("words")
            for document in corpus.read_documents(path, Reading(), odd)
            for sentence in document
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_words == 4_000_000
    assert [(kind, entry["count"]) for kind, entry in odd.items()] == [
        ("long_lines", 1),
        ("long_documents", 1),
    ]
    assert peak < 100e6


def test_prose_documents_end_at_two_blank_lines_and_at_form_feeds(write):
    path = write("A\r\none.\n\n  A two. It\nis.\n\n\nB one.\n\x0cC one.\nC two.\x0c\nD one.\n")
    assert list(read_documents(path, "prose")) == [
        ["A one.", "A two.", "It is."],
        ["B one."],
        ["C one.", "C two."],
        ["D one."],
    ]


def test_input_file_accepts_files_globs_and_folders(write, tmp_path, monkeypatch):
    (tmp_path / "folder/.hidden").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.en", "folder/d.txt", "folder/.e", "folder/.hidden/f.txt"):
        write("x", name)
    monkeypatch.chdir(tmp_path)
    assert find_input_files("c.en,*.txt") == ["c.en", "a.txt", "b.txt"]
    assert find_input_files("folder, b.txt,b.txt") == ["folder/d.txt", "b.txt"]
    assert find_input_files("**/*.txt") == ["a.txt", "b.txt", "folder/d.txt"]
    for name in ("one,two.txt", "a[1].txt"):
        assert find_input_files(write("x", name)) == [str(tmp_path / name)]


def test_only_descriptions_of_a_dataset_are_no_corpus(write, tmp_path):
    (tmp_path / "data").mkdir()
    write("{}", "data/dataset_info.json")
    with pytest.raises(InputError, match="--input_file: no file matches"):
        find_input_files(str(tmp_path / "data"), "arrow")
    cache = write("", "data/cache-1.arrow")
    assert find_input_files(cache, "arrow") == [cache]


def test_missing_corpus_broken_link_and_pipe_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for patterns in ("nowhere/*.txt", ",", "."):
        with pytest.raises(InputError, match="--input_file"):
            find_input_files(patterns)
    os.symlink("nowhere", "link")
    with pytest.raises(InputError, match=r"--input_file: \./link is a broken link"):
        find_input_files(".")
    os.mkfifo("pipe")
    with pytest.raises(InputError, match="--input_file: pipe is not a regular file"):
        find_input_files("p*")


def test_hard_wrapped_text_is_reported_with_the_flag_to_use(write, caplog):
    sentence = "It was a bright cold day in April, and the clocks of the town were striking {}. "
    paragraphs = ["".join(sentence.format(n + m) for n in range(8)) for m in range(9)]
    odd = OddInput()
    read_documents(write("\n\n".join(paragraphs).replace(". I", ".\nI")), odd=odd)
    assert not odd
    for width in (70, 150):
        path, odd = write("\r\n\r\n".join(textwrap.fill(p, width) for p in paragraphs)), OddInput()
        read_documents(path, odd=odd)
        caplog.clear()
        odd.log()
        assert caplog.messages == [
            f"{path}: files that look like hard-wrapped text, not like one sentence per line: 1; "
            "read as one sentence per line and one document per paragraph; for running text, use "
            "--input_format=prose, or gutenberg for books of Project Gutenberg"
        ]


@pytest.mark.parametrize(
    ("pattern", "is_wrapped"),
    [("gutenberg-85/m*.xz", True), ("kjv/*.txt", False), ("??/*.txt", False)],
)
def test_hard_wrapped_text_is_detected_in_real_text(shared_data, pattern, is_wrapped):
    paths = sorted((shared_data / "corpus").glob(pattern))[:8]
    assert paths
    for path in paths:
        odd = OddInput()
        read_documents(str(path), odd=odd)
        assert ("hard_wrapped_files" in odd) == is_wrapped, path


def test_files_of_other_formats_are_not_read_as_sentences(write, tmp_path):
    write("One.\nTwo.", "a.txt.gz")
    write("One.\nTwo.", "b.tokens")
    assert len(find_input_files(str(tmp_path))) == 2
    write("<p>One.</p>", "c.html")
    with pytest.raises(
        InputError, match=r"c.html is not a text file .*--input_format=html, or mixed"
    ):
        find_input_files(str(tmp_path))
    assert len(find_input_files(str(tmp_path), "mixed")) == 3


# --- held-out documents ---


def split(texts, folder, share, most):
    """Splits a corpus of one file for each text; returns the training and held-out documents."""
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:03}.txt").write_text(text)
    split_documents(find_input_files(str(folder)), Reading("prose"), folder, share, most)
    return [
        (folder / name).read_text().removesuffix("\n\n").split("\n\n")
        for name in ("train.txt", "eval.txt")
    ]


@pytest.mark.parametrize(
    ("share", "most", "count"), [(0.1, 100, 4), (0.5, 3, 3), (0.0, 9, 1), (1, 99, 39)]
)
def test_each_document_is_whole_and_in_one_file(tmp_path, share, most, count):
    """The choice depends on the texts only; a repeated text is written once."""
    texts = [f"Document {number} begins. It ends after {number} words." for number in range(40)]
    train, evaluated = split(texts * 2, tmp_path / "out", share, most)
    assert (len(train), len(evaluated)) == (40 - count, count)
    assert sorted(train + evaluated) == sorted(text.replace(". ", ".\n") for text in texts)
    _, again = split(["\n\n\n".join(reversed(texts))], tmp_path / "again", share, most)
    assert sorted(again) == sorted(evaluated)
