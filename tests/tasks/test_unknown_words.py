"""Tests the warning about texts whose words become [UNK]."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import keras_bert
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings

GERMAN = ["Das Buch ist good. Der film ist gut."] * 20
ENGLISH = ["the film is very good."] * 10 + ["it is a bad book."] * 20
CAPITALS = ["It Is A Good Film."] * 30
OTHER = "such as 'ist', 'das', 'buch': the vocabulary may be that of another language"
UNCASED = (
    "most of them are in the vocabulary in lower case, so it is probably uncased; set do_lower_case"
)


@pytest.fixture(scope="module")
def cased(pretrained, tmp_path_factory):
    """Returns the model with a tokenizer that does not lower-case."""
    folder = tmp_path_factory.mktemp("cased") / "model"
    shutil.copytree(pretrained, folder)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": False}))
    return folder


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "[UNK]" in record.getMessage()]


def predict(task, texts):
    if isinstance(task, keras_bert.QuestionAnswerer):
        return task.predict(["good"] * len(texts), texts)
    if isinstance(task, keras_bert.MaskFiller):
        return task.predict([f"{text} [MASK]" for text in texts])
    return task.predict(texts)


TASKS = {
    "TextClassifier": {"labels": ["0", "1"]},
    "EntityTagger": {"labels": ["O", "B-A", "I-A"]},
    "QuestionAnswerer": {"max_query_length": 8},
    "TextEmbedder": {},
    "MaskFiller": {},
}


@pytest.mark.parametrize("name", TASKS)
def test_texts_in_another_language_are_reported(name, pretrained, caplog):
    task = getattr(keras_bert, name).from_pretrained(pretrained, max_seq_length=32, **TASKS[name])
    predict(task, ENGLISH)
    predict(task, GERMAN[:3])  # too few words
    assert not warnings(caplog)
    predict(task, GERMAN)
    (message,) = warnings(caplog)
    assert message.endswith(OTHER)
    assert "% of the words (" in message


def test_wrong_casing_is_reported(cased, caplog):
    embedder = keras_bert.TextEmbedder.from_pretrained(cased, max_seq_length=32)
    embedder.predict(CAPITALS)
    (message,) = warnings(caplog)
    assert message.startswith("83% of the words (150 of 180) are not in the vocabulary")
    assert message.endswith(UNCASED)


def test_extract_features_reports_unknown_words(pretrained, run_program, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(GERMAN))
    done = run_program(
        "extract_features.py",
        f"--input_file={tmp_path}/lines.txt",
        f"--output_file={tmp_path}/out.jsonl",
        f"--init_checkpoint={pretrained}",
        "--layers=-1",
        "--max_seq_length=32",
    )
    assert done.returncode == 0, done.stderr
    assert OTHER in done.stderr


def test_create_pretraining_data_reports_unknown_words(pretrained, tmp_path, caplog):
    for name, texts, is_reported in (("de", GERMAN, True), ("en", ENGLISH, False)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n\n" + texts[0])
        with ThreadPoolExecutor(1) as executor:
            create_pretraining_data(
                str(tmp_path / f"{name}.txt"),
                str(tmp_path / name),
                str(pretrained / "vocab.txt"),
                Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1, num_shards=1),
                executor=executor,
            )
        assert [message.endswith(OTHER) for message in warnings(caplog)] == [True] * is_reported
        caplog.clear()
