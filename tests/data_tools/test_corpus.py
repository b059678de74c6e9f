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

from data_tools import build_vocab, corpus, create_pretraining_data, lines, sentences
from data_tools.corpus import Reading, find_input_files, read_texts, split_documents
from data_tools.lines import OddInput
from keras_bert.errors import InputError
from keras_bert.programs import adapt


def read_documents(path, input_format="sentences", odd=None, **reading):
    return corpus.read_documents(path, Reading(input_format, **reading), odd or OddInput())


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
        assert [*read_documents(write(content))] == [["One.", "Tw\0o."], ["Three."], ["Four."]]


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_archives_of_several_parts(write, suffix):
    pack = PACKERS[suffix]
    path = write(pack(b"One.\nTw") + pack(b"o.\n\nThree.\n"), f"a.txt.{suffix.upper()}")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three."]]
    with pytest.raises(InputError, match=rf"a\.{suffix}: broken archive after 0 bytes"):
        list(read_documents(write("One.\nTwo.\n" * 100, f"a.{suffix}")))


@pytest.mark.parametrize("suffix", PACKERS)
def test_truncated_archive_is_rejected(write, suffix):
    text = "".join(f"{number * 7919 % 10007} .\n" for number in range(10000)).encode()
    path = write(PACKERS[suffix](text)[:-20], f"a.{suffix}")
    with pytest.raises(InputError, match=rf"a\.{suffix}: broken archive after \d+ bytes of text"):
        list(read_documents(path))


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("junk", [b"\0" * 1000, b"\0", b"notes\n" * 9], ids=["NULs", "NUL", "text"])
def test_trailing_bytes_after_an_archive_are_rejected(write, suffix, junk):
    path = write(PACKERS[suffix](b"One.\nTwo.\n") + junk, f"a.{suffix}")
    with pytest.raises(
        InputError,
        match=r"a\.\w+: broken archive after 10 bytes of text: (found data after|truncated) ",
    ):
        list(read_documents(path))


@pytest.mark.parametrize("suffix", PACKERS)
def test_damaged_archive_error_gives_the_length_of_text_read(write, suffix):
    text = "".join(f"{number * 7919 % 10007} .\n" for number in range(100_000)).encode()
    archive = bytearray(PACKERS[suffix](text[: len(text) // 2]) + PACKERS[suffix](text))
    archive[-len(archive) // 5] ^= 255
    path = write(bytes(archive), f"a.{suffix}")
    with pytest.raises(InputError, match=r"broken archive after [1-9]\d{4,} bytes of text"):
        list(read_documents(path))


@pytest.mark.parametrize("suffix", PACKERS)
def test_large_archive_is_decompressed_in_small_parts(write, suffix):
    path = write(PACKERS[suffix](bytes(126_000_000)), f"a.{suffix}")
    with open(path, "rb") as file:
        tracemalloc.start()
        total = sum(map(len, lines.read_blocks(path, file)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == 126_000_000
    assert peak < 90e6


def test_folder_and_missing_file_are_rejected(tmp_path):
    for path in (tmp_path, tmp_path / "a.txt", tmp_path / "a.bz2"):
        with pytest.raises(InputError, match="cannot be read"):
            list(read_documents(str(path)))


@pytest.mark.parametrize("input_format", ["sentences", "prose"])
def test_file_of_bad_lines_is_rejected_with_file_line_and_offset(write, input_format):
    path = write(b"One.\nTwo.\nThr\xe9e.\n")
    with pytest.raises(
        InputError,
        match=r"corpus\.txt line 3: not UTF-8 \(byte 0xe9 at offset 3 of the line, 13 of the "
        r"file\): 1 of 3 lines are bad, more than --max_bad_line_share=0\.1 allows$",
    ):
        list(read_documents(path, input_format))


@pytest.mark.parametrize("input_format", ["sentences", "prose"])
def test_few_undecodable_bytes_are_replaced_and_counted(write, caplog, input_format):
    text = b"Good one.\n" * 15 + b"Caf\xe9 \xff\xfe.\n" + b"Good two.\n" * 15 + b"\xe9.\n"
    odd = OddInput()
    path = write(b"\xef\xbb\xbf" + text)
    (document,) = read_documents(path, input_format, odd)
    assert document[15] == "Caf\ufffd \ufffd\ufffd."
    places = [(16, 3 + 150 + 3, "0xe9"), (32, 3 + len(text) - 3, "0xe9")]
    assert odd.to_dict() == {
        "undecodable_bytes": {
            "count": 4,
            "files": 1,
            "first": [{"file": path, "line": n, "offset": o, "what": w} for n, o, w in places],
        }
    }
    odd.log()
    assert (
        f"{path}: 4 undecodable bytes, the first at line 16, byte offset 156 (0xe9): replaced by "
        "U+FFFD, which the tokenizer drops" in caplog.text
    )
    with pytest.raises(
        InputError, match=r"txt line 16: .*: more than --max_bad_line_share=0 allows$"
    ):
        list(read_documents(path, input_format, max_bad_line_share=0))


def test_utf16_error_names_the_encoding(write):
    for encoding in ("utf-16-le", "utf-16-be"):
        with pytest.raises(InputError, match=r"the byte order mark of UTF-16 .*; expected UTF-8"):
            list(read_documents(write("\ufeffOne.\nTwo.\n".encode(encoding))))


def test_files_without_text_are_counted(write):
    odd = OddInput()
    list(read_documents(write("\n\n"), odd=odd))
    assert odd.to_dict()["empty_files"]["count"] == 1


@pytest.mark.parametrize("end", ["", "\n"])
def test_long_lines_are_split_at_white_space_and_counted_once(monkeypatch, end):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    text = "One.\nThis is rather a long line, i.e. more than twenty bytes.\nThree."
    odd = OddInput()
    source = lines.Lines("a.txt", 0.1, io.BytesIO((text + end).encode()), 20)
    parts = [(line.content.decode(), line.number, line.is_partial) for line in source.lines()]
    assert "".join(text for text, _, _ in parts) == text.replace("\n", "")
    assert all(len(text) <= 20 for text, _, _ in parts)
    assert parts[:2] == [("One.", 1, False), ("This is rather a ", 2, True)]
    assert parts[-1] == ("Three.", 3, False)
    odd.merge(source.odd)
    assert odd["long_lines"] == 1
    source = lines.Lines("a.txt", 0, io.BytesIO(("é文😀" * 30).encode()), 20)
    parts = [source.decode(line) for line in source.lines()]
    assert "".join(parts) == "é文😀" * 30
    assert all(15 < len(part.encode()) <= 20 for part in parts[:-1])


@pytest.mark.parametrize("blank", [" ", "\u3000"])
@pytest.mark.parametrize("end", ["", "\n", "end\n"])
def test_white_space_inside_a_long_line_does_not_end_a_document(write, monkeypatch, blank, end):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    path = write("One.\nTwo." + blank * 90 + end + ("" if end == "" else "Three.\n"))
    (document,) = read_documents(path)
    assert (
        document
        == ["One.", "Two.", *(["end"] if "end" in end else []), "Three."][: None if end else 2]
    )


def test_document_of_very_many_lines_is_split_into_parts(write, monkeypatch):
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_SENTENCES", 1000)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 4096)
    for input_format, text in (
        ("sentences", "w17\n" * 10_000),
        ("prose", "He went. " * 9 + "\n\n" + ("It is. " * 100 + "\n\n") * 100),
    ):
        odd = OddInput()
        parts = list(read_documents(write(text), input_format, odd))
        assert odd["long_documents"] == 1
        assert len(parts) > 4
        assert max(map(len, parts)) < 1000 + 4096
    assert len(list(read_documents(write("w17\n" * 900 + "\n" + "w17\n" * 900)))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("input_format", ["sentences", "prose", "jsonl"])
def test_file_without_line_ends_is_streamed(write, input_format):
    path = write(gzip.compress(b"words " * 8_000_000, 1), "a.gz")  # 48 MB
    tracemalloc.start()
    try:
        if input_format == "jsonl":
            with pytest.raises(InputError, match=r"line 1: .*: 1 of 1 lines are bad"):
                list(read_documents(path, input_format))
            # This format needs a whole line in memory, up to a limit.
            assert tracemalloc.get_traced_memory()[1] < 400e6
            return
        odd = OddInput()
        num_words = sum(
            sentence.count("words")
            for document in read_documents(path, input_format, odd)
            for sentence in document
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_words == 8_000_000
    assert (odd["long_lines"], odd["long_documents"]) == (1, 1)
    assert peak < 200e6


def test_prose_documents_end_at_two_blank_lines_and_at_form_feeds(write):
    path = write("A\r\none.\n\n  A two. It\nis.\n\n\nB one.\n\x0cC one.\nC two.\x0c\nD one.\n")
    assert list(read_documents(path, "prose")) == [
        ["A one.", "A two.", "It is."],
        ["B one."],
        ["C one.", "C two."],
        ["D one."],
    ]


def test_prose_splits_a_novel_into_its_chapters(shared_data):
    novel = shared_data / "corpus/pride_and_prejudice.txt"
    documents = list(read_documents(str(novel), "prose"))
    assert sum(document[0].startswith("Chapter") for document in documents) == 61
    opening = next(document for document in documents if document[0].startswith("Chapter 1"))
    assert opening[1] == (
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife."
    )
    assert "Mr. Bennet replied that he had not." in opening


def test_counts_of_odd_input_are_summed_over_files():
    total = OddInput()
    for name in ("a", "b"):
        odd = OddInput()
        for line in range(1, 9):
            place = {"file": name, "line": line, "offset": 10 * line}
            odd.add("malformed_lines", place, "not JSON")
        total.merge(odd.to_dict())
    entry = total.to_dict()["malformed_lines"]
    assert (entry["count"], entry["files"]) == (16, 2)
    assert [place["line"] for place in entry["first"]] == [1, 2, 3, 4, 5]


def test_input_file_accepts_files_globs_and_folders(write, tmp_path, monkeypatch):
    (tmp_path / "folder/.hidden").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.en", "folder/d.txt", "folder/.e", "folder/.hidden/f.txt"):
        write("x", name)
    monkeypatch.chdir(tmp_path)
    assert find_input_files("c.en,*.txt") == ["c.en", "a.txt", "b.txt"]
    assert find_input_files("folder, b.txt,b.txt") == ["folder/d.txt", "b.txt"]
    assert find_input_files("**/*.txt") == ["a.txt", "b.txt", "folder/d.txt"]


@pytest.mark.parametrize("name", ["one,two.txt", "a[1].txt"])
def test_file_name_may_contain_a_comma_or_a_bracket(write, name):
    path = write("x", name)
    assert find_input_files(path) == [path]


@pytest.mark.parametrize("patterns", ["nowhere.txt", "nowhere/*.txt", "", ",", "."])
def test_missing_corpus_is_rejected(patterns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--input_file"):
        find_input_files(patterns)


@pytest.mark.parametrize("patterns", ["folder", "folder/*", "folder/odd"])
def test_broken_link_and_pipe_are_rejected(write, tmp_path, monkeypatch, patterns):
    (tmp_path / "folder").mkdir()
    write("x", "folder/a.txt")
    monkeypatch.chdir(tmp_path)
    os.symlink("nowhere", "folder/odd")
    with pytest.raises(InputError, match="--input_file: folder/odd is a broken link"):
        find_input_files(patterns)
    os.remove("folder/odd")
    os.mkfifo("folder/odd")
    with pytest.raises(InputError, match="--input_file: folder/odd is not a regular file"):
        find_input_files(patterns)


def odd_kinds(path):
    odd = OddInput()
    for _ in read_documents(path, odd=odd):
        pass
    return list(odd.to_dict())


@pytest.mark.parametrize("width", [70, 115, 132, 150])
def test_hard_wrapped_text_is_reported_with_the_flag_to_use(write, caplog, width):
    sentence = "It was a bright cold day in April, and the clocks of the town were striking {}. "
    paragraphs_ = ["".join(sentence.format(n + m) for n in range(8)) for m in range(9)]
    wrapped = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs_)
    assert odd_kinds(write(wrapped)) == ["hard_wrapped_files"]
    assert odd_kinds(write(wrapped.replace("\n", "\r\n"))) == ["hard_wrapped_files"]
    assert odd_kinds(write("\n\n".join(paragraphs_).replace(". I", ".\nI"))) == []
    odd = OddInput()
    path = write(wrapped)
    for _ in read_documents(path, odd=odd):
        pass
    odd.log()
    assert caplog.messages == [
        f"{path}: 1 file that looks like hard-wrapped text, not like one sentence per line: read "
        "as one sentence per line and one document per paragraph; for running text, use "
        "--input_format=prose, or gutenberg for books of Project Gutenberg"
    ]


@pytest.mark.parametrize(
    ("pattern", "is_wrapped"),
    [
        ("pride_and_prejudice.txt", True),
        ("gutenberg-85/[mw]*.xz", True),
        ("ud_ewt_dev.docs.txt", False),
        ("kjv/*.txt", False),
        ("??/*.txt", False),
        ("wikitext-2/valid.txt", False),
    ],
)
def test_hard_wrapped_text_is_detected_in_real_text(shared_data, pattern, is_wrapped):
    paths = sorted((shared_data / "corpus").glob(pattern))
    assert paths
    for path in paths[:20]:
        assert ("hard_wrapped_files" in odd_kinds(str(path))) == is_wrapped, path


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


def test_all_programs_have_the_same_default_format():
    formats = set()
    for program in (adapt.PROGRAM, build_vocab.PROGRAM, create_pretraining_data.PROGRAM):
        formats.add(program.flags()["input_format"].default)
    assert formats == {"sentences"}


# --- held-out documents ---


PROSE = Reading("prose")


def documents(count):
    return [f"Document {number} begins. It ends after {number} words." for number in range(count)]


def write_texts(folder, texts):
    """Writes one file for each text; returns the paths."""
    folder.mkdir()
    paths = [folder / f"{number:03}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def split(paths, target, share=0.1, most=100):
    """Splits a corpus; returns the documents for training and the held-out ones."""
    split_documents(paths, PROSE, target, share, most)
    return [
        (target / name).read_text().removesuffix("\n\n").split("\n\n")
        for name in ("train.txt", "eval.txt")
    ]


@pytest.mark.parametrize(
    ("share", "most", "count"), [(0.1, 100, 4), (0.5, 3, 3), (0.0, 9, 1), (1, 99, 39)]
)
def test_each_document_is_whole_and_in_one_file(tmp_path, share, most, count):
    paths = write_texts(tmp_path / "in", documents(40))
    train, evaluated = split(paths, tmp_path / "out", share, most)
    assert (len(train), len(evaluated)) == (40 - count, count)
    assert sorted(train + evaluated) == sorted(text.replace(". ", ".\n") for text in documents(40))


def test_choice_depends_on_the_texts_only(tmp_path):
    texts = documents(40)
    _, first = split(write_texts(tmp_path / "a", texts), tmp_path / "first")
    together = tmp_path / "together.txt"
    together.write_text("\n\n\n".join(reversed(texts)))
    _, second = split([str(together)], tmp_path / "second")
    assert sorted(first) == sorted(second)


def test_repeated_documents_are_written_once(tmp_path):
    train, evaluated = split(write_texts(tmp_path / "in", documents(10) * 3), tmp_path / "out", 0.5)
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
    paths = write_texts(tmp_path / "in", texts)
    with pytest.raises(InputError, match="expected at least 2 different documents") as error:
        split(paths, tmp_path / "out")
    assert found in str(error.value)
    assert not (tmp_path / "out").exists()


def test_failure_while_writing_leaves_no_folder(tmp_path, monkeypatch):
    paths = write_texts(tmp_path / "in", documents(4))
    opened = []

    def fail_when_read_again(path, reading, odd):
        opened.append(path)
        if opened.count(path) > 1 and path == paths[2]:
            raise InputError(f"{path}: cannot be read")
        return read_texts(path, reading, odd)

    monkeypatch.setattr(corpus, "read_texts", fail_when_read_again)
    with pytest.raises(InputError, match="cannot be read"):
        split(paths, tmp_path / "out")
    assert len(opened) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
