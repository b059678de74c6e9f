"""Tests of reading Parquet files, Arrow files and dataset folders."""

import gzip
import json
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools.building.spill import InputFile
from data_tools.corpus.documents import Reading, find_input_files, read_documents
from data_tools.corpus.odd_input import OddInput
from keras_bert.common.errors import InputError
from keras_bert.common.files import sha256
from tests.damaged_files import write_corrupt_parquet

TEXTS = ["One. Two.\nA heading", "Three.", "", None, "Four."]
DOCUMENTS = [["One.", "Two.", "A heading"], ["Three."], ["Four."]]


def write_parquet(path, table, **options):
    parquet.write_table(table, path, **options)
    return path


def write_arrow(path, table, new=pa.ipc.new_stream, rows=2):
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def read(path, input_format, **reading):
    odd = OddInput()
    documents = list(read_documents(str(path), Reading(input_format, **reading), odd))
    return documents, odd


def table(texts=TEXTS, name="text", kind=None):
    return pa.table({"id": list(range(len(texts))), name: pa.array(texts, kind or pa.string())})


def check_texts(path, input_format):
    documents, odd = read(path, input_format)
    assert documents == DOCUMENTS
    places = [{"file": str(path), "row": 3}, {"file": str(path), "row": 4}]
    assert odd.to_dict() == {"empty_documents": {"count": 2, "files": 1, "first": places}}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("options", [{"row_group_size": 2}, {"compression": "zstd"}], ids=str)
def test_parquet(tmp_path, kind, options):
    check_texts(write_parquet(tmp_path / "a.parquet", table(kind=kind), **options), "parquet")


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_arrow(tmp_path, new, kind):
    check_texts(write_arrow(tmp_path / "a.arrow", table(kind=kind), new), "arrow")


def test_text_field_names_the_column(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", table(name="body"))
    assert read(path, "parquet", text_field="body")[0] == DOCUMENTS
    with pytest.raises(InputError, match=r"a\.parquet: has no column 'text'; .* columns: id, body"):
        read(path, "parquet")
    with pytest.raises(InputError, match="column 'id' has the type int64; expected strings"):
        read(path, "parquet", text_field="id")


@pytest.mark.parametrize("input_format", ["parquet", "arrow"])
def test_text_that_is_not_utf8_is_counted_by_row(tmp_path, input_format):
    values = pa.array([b"Good.", b"B\xffd. Good.", *[b"Good."] * 8], pa.binary())
    bad = pa.table({"text": values.view(pa.string())})
    write = write_parquet if input_format == "parquet" else write_arrow
    path = write(tmp_path / "a", bad)
    documents, odd = read(path, input_format)
    assert documents[1] == ["B\ufffdd.", "Good."]
    assert odd.to_dict()["undecodable_bytes"]["first"] == [{"file": str(path), "row": 2}]
    with pytest.raises(InputError, match=r"a row 2: the text is not UTF-8: more than --max_bad"):
        read(path, input_format, max_bad_line_share=0)


@pytest.mark.parametrize(
    ("input_format", "content", "message"),
    [
        ("parquet", b"", "is empty; expected a Parquet file"),
        ("arrow", b"", "is empty; expected an Arrow file"),
        ("parquet", b"plain text", "starts with the bytes b'plain '; expected a Parquet file"),
        ("arrow", b"PAR1 and more", "starts with the bytes b'PAR1 a'; expected an Arrow file"),
        ("parquet", b"PAR1 truncated", "expected a complete Parquet file, with its end marker"),
        ("parquet", b"PAR1\x00\x00\x00\x00PARE", "is encrypted"),
        ("parquet", b"PAR1\xff\xff\x00\x00PAR1", "the footer of the file cannot be read: "),
        ("arrow", b"ARROW1\0\0\xff\xff\xff\x7fARROW1", "the schema cannot be read: "),
        ("arrow", b"\xff\xff\xff\xff\x10\0\0\0", "expected a complete Arrow file, with its end"),
    ],
)
def test_other_files_are_rejected(tmp_path, input_format, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match="/a: .*" + message) as error:
        read(tmp_path / "a", input_format)
    assert "\n" not in str(error.value)


def test_column_name_that_is_not_utf8_is_rejected(tmp_path):
    path = write_arrow(tmp_path / "a.arrow", table(name="texté"))
    path.write_bytes(path.read_bytes().replace("texté".encode(), b"text\xff\xff"))
    with pytest.raises(InputError, match=r"a\.arrow: the schema cannot be read: 'utf-8' codec"):
        read(path, "arrow")


def test_compressed_file_is_rejected(tmp_path):
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(InputError, match=r"a\.parquet\.gz: is compressed; .* decompress the file"):
        read(tmp_path / "a.parquet.gz", "parquet")


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_corrupt_row_group_is_named(tmp_path, compression):
    texts = [f"Sentence {number} of the corpus." for number in range(100)]
    columns = {"id": range(len(texts)), "text": texts}
    path = write_corrupt_parquet(tmp_path / "a.parquet", columns, compression)
    with pytest.raises(InputError, match=r"row group 2 \(rows 51 to 100\) cannot be read: ") as e:
        read(path, "parquet")
    assert "\n" not in str(e.value)


def test_damaged_record_batch_is_named(tmp_path):
    path = write_arrow(tmp_path / "a.arrow", table(["One."] * 6))
    content = path.read_bytes()
    offsets = (0).to_bytes(4, "little") + (4).to_bytes(4, "little")
    at = content.rindex(offsets)
    damaged = content[: at + 4] + (2**30).to_bytes(4, "little") + content[at + 8 :]
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="the record batch from row 5 cannot be read: "):
        read(path, "arrow")


def test_checksum_and_progress_cover_the_whole_file(tmp_path, monkeypatch):
    path = str(write_parquet(tmp_path / "a.parquet", table(["One. Two."] * 5000)))
    for skipped in (64 << 20, 0):  # 0: the file is read in order only at the end
        monkeypatch.setattr("data_tools.building.spill._HashedStream._MAX_SKIPPED_BYTES", skipped)
        done = []
        source = InputFile(path, Reading("parquet"), on_read=done.append)
        assert len(list(source.documents())) == 5000
        entry = source.entry()
        assert entry["sha256"] == sha256(path)
        assert entry["bytes"] == sum(done) == (tmp_path / "a.parquet").stat().st_size


def test_file_that_changes_while_it_is_read_is_rejected(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", table(["One. Two."] * 2000), row_group_size=500)
    documents = InputFile(str(path), Reading("parquet")).documents()
    next(documents)
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match=r"a\.parquet: the content changed while it was read"):
        list(documents)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_row_group(tmp_path):
    text = "A sentence of a document. " * 40
    path = write_parquet(
        tmp_path / "a.parquet", table([f"{n} {text}" for n in range(30_000)]), compression="none"
    )
    assert path.stat().st_size > 30 << 20
    pool, tracker = pa.proxy_memory_pool(pa.default_memory_pool()), 0
    previous = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        for document in read_documents(str(path), Reading("parquet"), OddInput()):
            tracker += len(document)
        python_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(previous)
    assert tracker == 30_000 * 40
    assert pool.max_memory() + python_peak < 12 << 20


# Folders of Dataset.save_to_disk


@pytest.fixture
def dataset(tmp_path):
    """Returns a folder with two splits in the format of Hugging Face datasets 5.2."""
    folder = tmp_path / "dataset"
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
        for name in names:
            write_arrow(folder / split / name, table([f"A {split}. {name}."]))
        state = {"_data_files": [{"filename": name} for name in names], "_split": split}
        (folder / split / "state.json").write_text(json.dumps(state))
        (folder / split / "dataset_info.json").write_text("{}")
        (folder / split / "cache-1.arrow").write_bytes(b"cache")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


def test_dataset_folder_stands_for_its_data_files(dataset):
    paths = find_input_files(str(dataset), "arrow")
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert paths == [str(dataset / split / name) for split in ("test", "train") for name in names]
    assert find_input_files(str(dataset / "train"), "arrow") == paths[2:]
    assert read(paths[2], "arrow")[0] == [["A train.", "data-00000-of-00002.arrow."]]


def test_missing_data_file_or_split_is_named(dataset):
    (dataset / "train" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(
        InputError, match=r"lists 2 data files, but .*data-00001-of-00002\.arrow is"
    ):
        find_input_files(str(dataset), "arrow")
    (dataset / "test" / "state.json").unlink()
    with pytest.raises(InputError, match=r"lists the split 'test', but .*/test has no state\.json"):
        find_input_files(str(dataset), "arrow")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "invalid content"),
        ("[]", "invalid content"),
        ('{"_data_files": [1]}', "invalid content"),
        ('{"_data_files": [{"filename": "../other"}]}', "invalid content"),
        ('{"_data_files": [], "_indices_files": [1]}', "selects rows of its data files by indices"),
    ],
)
def test_invalid_state_is_rejected(dataset, content, message):
    (dataset / "train" / "state.json").write_text(content)
    with pytest.raises(InputError, match=f"state.json: {message}"):
        find_input_files(str(dataset), "arrow")
