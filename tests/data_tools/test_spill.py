"""Tests that spilled documents do not depend on the order of files, groups and processes."""

import json
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from data_tools import lines, spill, tfrecords
from data_tools.settings import Settings
from keras_bert.errors import InputError

BUCKETS = 4


def read(directory, shard, num_shards):
    names = [path.relative_to(directory).as_posix() for path in directory.glob("documents-*/*")]
    names = spill.files_of_shards(names, BUCKETS, num_shards)[shard]
    return spill.read_spilled([str(directory / name) for name in names], shard, num_shards)


def spilled(paths, directory, num_workers=1, **settings):
    """Returns the counts of each file, and the documents of each bucket."""
    directory.mkdir()
    settings = Settings(**settings)
    counts_of = {}
    for sources in spill.share_out(paths, num_workers, settings):
        counts, names = spill.spill(sources, settings, BUCKETS, str(directory))
        counts_of |= counts
        assert all((directory / name).is_file() for name in names)
    by_file = spill.counts_by_file(counts_of)
    counts = [by_file[path] for path in paths]
    return counts, [read(directory, bucket, BUCKETS) for bucket in range(BUCKETS)]


def text_of(input_format, numbers):
    """Returns documents in a format, with input that is odd: empty, malformed, undecodable."""
    paragraphs = [f"Document {n} begins.\nIt has more. And ends." for n in numbers]
    if input_format in ("sentences", "prose"):
        parts = [p + "\n" * (2 + (n % 3 == 0)) for n, p in enumerate(paragraphs)]
    elif input_format == "jsonl":
        parts = [json.dumps({"text": p if n % 7 else ""}) + "\n" for n, p in enumerate(paragraphs)]
        parts[20] = "{\n"
    elif input_format == "wiki json":
        parts = [json.dumps({"title": "T", "text": "T\n" + p}) + "\n" for p in paragraphs]
    else:
        texts = [p if n % 7 else "" for n, p in enumerate(paragraphs)]
        parts = [f'<doc title="T">\nT\n\n{text}\n</doc>\n' for text in texts]
        parts[20] = parts[20].replace("</doc>\n", "")
    content = b"\xef\xbb\xbf\n" + "".join(parts).encode()
    return content.replace(b"Document 33", b"Document \xff")


@pytest.mark.parametrize("input_format", ["sentences", "prose", "jsonl", "wiki json", "wiki tags"])
def test_a_large_file_is_divided_among_workers(input_format, tmp_path, monkeypatch):
    content = text_of(input_format, range(40)).replace(b"\n", b"\r\n")
    path = tmp_path / "corpus"
    path.write_bytes(content)
    settings = {"input_format": input_format.split()[0], "max_bad_line_share": 0.5}
    monkeypatch.setattr(lines, "BLOCK_BYTES", 256)
    (entry,), documents = spilled([str(path)], tmp_path / "whole", 1, **settings)
    monkeypatch.setattr(spill, "_TEXT_BYTES_PER_WORKER", 1)
    for num_workers in (2, 3, 8):
        result = spilled([str(path)], tmp_path / str(num_workers), num_workers, **settings)
        assert result == ([entry], documents)
        assert len(list((tmp_path / str(num_workers)).glob("documents-*"))) == num_workers


def test_bad_lines_of_a_part_are_rejected(tmp_path, monkeypatch):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "A text."}\n' * 100 + "{\n" * 6)
    settings = {"input_format": "jsonl", "max_bad_line_share": 0.05}
    monkeypatch.setattr(spill, "_TEXT_BYTES_PER_WORKER", 1)
    with pytest.raises(
        InputError, match=r"jsonl line 101: .*byte offset 2000 .*more than --max_ba"
    ):
        spilled([str(path)], tmp_path / "parts", 2, **settings)


@pytest.mark.slow
def test_memory_is_bounded_by_the_buffer(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "_SPILL_BYTES_PER_BUCKET", 1 << 17)
    path = tmp_path / "a.txt"
    document = "document {} .\n" + "a line of some words .\n" * 43 + "\n"
    path.write_text("".join(map(document.format, range(6000))))  # 6 MB
    sources = [(str(path), lines.WHOLE)]
    tracemalloc.start()
    try:
        (entry,) = spill.spill(sources, Settings(), BUCKETS, str(tmp_path))[0].values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert entry["documents"] == 6000
    assert peak < BUCKETS * spill._SPILL_BYTES_PER_BUCKET + 4e6


def test_damaged_temporary_file_is_rejected(tmp_path):
    (tmp_path / "a.txt").write_bytes(text_of("sentences", range(40)))
    spilled([str(tmp_path / "a.txt")], tmp_path / "out", max_bad_line_share=0.5)
    (file,) = (tmp_path / "out").glob("documents-*/00000")
    for size in (40, 10):
        os.truncate(file, size)
        with pytest.raises(InputError, match=f"{file}: temporary file is missing or truncated"):
            read(tmp_path / "out", 0, BUCKETS)
    with pytest.raises(InputError, match="is missing or truncated"):
        spill.read_spilled([f"{tmp_path}/none"], 0, BUCKETS)


# --- shards of tf.Example messages ---


@pytest.mark.parametrize("rows", [0, 1, 12])
def test_messages_equal_those_of_protobuf(rows):
    rng = np.random.default_rng(0)

    def integers(width: int, num_bits: int) -> np.ndarray:
        """Returns numbers of any length in bits, of which protobuf stores seven per byte."""
        powers = 2 ** rng.integers(num_bits, size=(rows, width))
        return powers - rng.integers(2, size=powers.shape)

    features = {
        "input_ids": integers(7, 15).astype(np.int32),
        "bytes": integers(7, 9).clip(0, 255).astype(np.uint8),
        "limits": np.tile([0, 127, 128, 2**28 - 1, 2**28, 2**32 - 1], (rows, 1)),
        "short": integers(1, 33),
        "segment_ids": rng.integers(2, size=(rows, 200)).astype(np.int32),
        "weights": rng.normal(size=(rows, 40)).astype(np.float32),
    }
    messages = tfrecords.encode_examples(features)
    assert len(messages) == len(features["short"])
    for row, message in enumerate(messages):
        expected = tf.train.Example()
        for name, values in features.items():
            feature = expected.features.feature[name]
            is_float = values.dtype == np.float32
            (feature.float_list if is_float else feature.int64_list).value.extend(values[row])
        assert message == expected.SerializeToString(deterministic=True)
