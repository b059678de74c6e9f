"""Tests CoNLL column files: lines that are skipped, kept or rejected."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence, read_conll, write_conll


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "train.conll"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_words_are_the_first_column_and_tags_the_last(file):
    path = file("EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP B-PER\n")
    assert read_conll(path) == [
        Sentence(("EU", "rejects"), ("B-ORG", "O"), line=1),
        Sentence(("Peter",), ("B-PER",), line=4),
    ]


def test_other_columns_can_be_chosen(file):
    path = file("1\tEU\tB-ORG\tx\n")
    assert read_conll(path, token_column=1, tag_column=2)[0].words == ("EU",)
    assert read_conll(path, token_column=1, tag_column=-2)[0].tags == ("B-ORG",)


@pytest.mark.parametrize(
    "end", ["\n\n", "\n\t\n", "\n \t \n", "\r\n\r\n", "\r\n\t\r\n", "\n\n\n\n"]
)
def test_blank_line_with_any_whitespace_ends_a_sentence(file, end):
    sentences = read_conll(file(f"a\tO{end}b\tO"))
    assert [sentence.words for sentence in sentences] == [("a",), ("b",)]


def test_byte_order_mark_is_not_part_of_the_first_word(file):
    assert read_conll(file(b"\xef\xbb\xbfEU O\n"))[0].words == ("EU",)


def test_multiple_spaces_separate_columns_like_one(file):
    assert read_conll(file("EU   O \nis O\n"))[0].tags == ("O", "O")


def test_words_between_tabs_may_contain_spaces_or_be_a_no_break_space(file):
    path = file("New York\tB-LOC\n\u00a0\tO\n\u2028\tO\n")
    assert read_conll(path)[0].words == ("New York", "\u00a0", "\u2028")


def test_comments_are_skipped_if_their_prefix_is_given(file):
    path = file("#\thttp://a.b [2011]\n1\tEU\tB-ORG\n2\t#\tO\n\n# id 2\n1\tPeter\tB-PER\n")
    sentences = read_conll(path, 1, 2, comment_prefix="#")
    assert [s.words for s in sentences] == [("EU", "#"), ("Peter",)]
    assert [s.line for s in sentences] == [2, 6]
    for columns in ((0, -1), (1, 2)):
        with pytest.raises(InputError, match=r"line [12]: .*--comment_prefix='#'"):
            read_conll(path, *columns)
    within = file("a O\n#b O\n")
    assert read_conll(within, comment_prefix="#")[0].words == ("a", "#b")


def test_docstart_lines_start_documents_and_are_not_words(file):
    path = file("-DOCSTART- -X- O O\n\na N O O\n\nb N O O\n\n-DOCSTART- -X- O O\nc N O O\n")
    assert [(s.words, s.document) for s in read_conll(path)] == [
        (("a",), 0),
        (("b",), 0),
        (("c",), 1),
    ]


def test_docstart_line_may_have_fewer_columns_and_come_first(file):
    assert read_conll(file("-DOCSTART- O\na N N O\n"))[0] == Sentence(("a",), ("O",), line=2)


def test_file_with_one_column_has_words_without_tags(file):
    assert read_conll(file("EU\nrejects\n")) == [Sentence(("EU", "rejects"), (), line=1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\nb\n", r"train\.conll, line 2: expected 2 columns, as in line 1; got 1: 'b'"),
        ("a N O\n\nb O\n", r"line 3: expected 3 columns, as in line 1; got 2: 'b O'"),
        ("a\tO\n\tO\n", r"line 2: column 0 is empty; expected a word and its tag"),
        ("a\tO\nb\t\n", r"line 2: column -1 is empty"),
        (b"a\tO\n\xff\tO\n", r"line 2: expected UTF-8, got the bytes b'\\xff\\tO"),
        ("a\tO\nb\0\tO\n", r"line 2: has a NUL character; expected text in UTF-8"),
        ("\n\n", r"train\.conll: contains no sentences"),
        ("-DOCSTART- -X- O\n", r"train\.conll: contains no sentences"),
    ],
)
def test_invalid_line_is_rejected_with_file_and_line_number(file, text, message):
    with pytest.raises(InputError, match=message):
        read_conll(file(text))


def test_missing_column_is_rejected(file):
    with pytest.raises(InputError, match=r"line 1: --tag_column=4, but the line has 2 columns"):
        read_conll(file("a O\n"), tag_column=4)


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"none\.conll: cannot be read: No such file"):
        read_conll(tmp_path / "none.conll")


def test_columns_are_written_in_the_format_of_conlleval(tmp_path):
    path = tmp_path / "predictions.conll"
    write_conll(
        path, [(("New York", "\u00a0"), ("B-LOC", "O"), ("B-LOC", "O")), (("a",), ("O",), ("O",))]
    )
    assert path.read_text() == "New_York B-LOC B-LOC\n_ O O\n\na O O\n\n"


def test_wnut_17_is_read_completely(shared_data):
    folder = shared_data / "ner" / "wnut17"
    counts = {
        name: len(read_conll(folder / name))
        for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    }
    assert counts == {
        "wnut17train.conll": 3394,
        "emerging.dev.conll": 1009,
        "emerging.test.annotated": 1287,
    }


@pytest.mark.parametrize("first", [0, 1])
def test_column_of_word_numbers_is_rejected(tmp_path, first):
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\tIn\tO\n{first + 1}\tOslo\tB-LOC\n\n{first}\tHere\tO\n")
    with pytest.raises(InputError, match=r"column 0 has the number of each word; .*_column=1"):
        read_conll(path)
    assert [sentence.words for sentence in read_conll(path, 1)] == [("In", "Oslo"), ("Here",)]
