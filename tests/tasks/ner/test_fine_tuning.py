"""Tests end-to-end fine-tuning of a tagger: training, output files, and later evaluation."""

import json
import shutil

import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.common.errors import InputError
from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.data import NerSettings
from keras_bert.tasks.ner.fine_tuning import fine_tune_tagger
from keras_bert.tasks.ner.scores import entity_scores
from keras_bert.training.objective import TrainingSettings


def run(files, output_dir, init_checkpoint=None, **changes):
    ner = {
        "train_file": str(files / "train.conll"),
        "eval_file": str(files / "dev.conll"),
        "test_file": str(files / "test.conll"),
    }
    ner |= {name: changes.pop(name) for name in [*changes] if hasattr(NerSettings, name)}
    settings = {
        "init_checkpoint": str(init_checkpoint or files / "bert"),
        "max_seq_length": 8,  # Some sentences are split.
        "learning_rate": 1e-2,
        "num_train_epochs": 4.0,
        "random_seed": 1,
    } | changes
    run = FineTuningRun(
        settings=FineTuningSettings(**settings),
        training=TrainingSettings(num_train_steps=0, train_batch_size=8, jit_compile=False),
        strategy=tf.distribute.get_strategy(),
        output_dir=output_dir,
    )
    return fine_tune_tagger(NerSettings(**ner), run)


@pytest.fixture(scope="module")
def trained(ner_files, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("out") / "run"
    return run(ner_files, output_dir), output_dir


def test_run_learns_and_reports_every_type(trained):
    results, output_dir = trained
    assert results["f1"] > 0.95
    assert {"precision", "recall", "f1_PER", "recall_LOC", "accuracy"} <= results.keys()
    assert json.loads((output_dir / "results.json").read_text()) == results


def test_predictions_in_conlleval_format_give_the_reported_scores(trained, ner_files):
    _, output_dir = trained
    predicted = read_conll(output_dir / "predictions.conll")
    gold = read_conll(ner_files / "test.conll")
    assert [s.words for s in predicted] == [s.words for s in gold]
    gold_column = read_conll(output_dir / "predictions.conll", tag_column=1)
    assert [s.tags for s in gold_column] == [s.tags for s in gold]
    first_line = (output_dir / "predictions.conll").read_text().split("\n")[0]
    assert len(first_line.split(" ")) == 3
    scores = entity_scores([(g.tags, p.tags) for g, p in zip(gold, predicted, strict=True)])
    reported = json.loads((output_dir / "test_results.json").read_text())
    assert {name: reported[name] for name in scores} == scores


def test_model_names_its_labels_like_transformers(trained):
    config = json.loads((trained[1] / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["id2label"]["3"] == "B-PER"
    assert config["label2id"]["O"] == 0


def test_trained_model_evaluates_and_predicts_without_training(trained, ner_files, tmp_path):
    results, output_dir = trained
    (tmp_path / "words.conll").write_text("d\na\nb\n\nc\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=output_dir,
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["f1"] == results["f1"]
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\nb I-PER\n\nc B-LOC\n\n"


@pytest.mark.parametrize(
    "tags",
    [
        "O S-LOC E-LOC B-PER E-PER",
        "O U-LOC L-LOC B-PER L-PER",
        "O S-LOC M-LOC B-PER M-PER",
        "O W-LOC E-LOC B-PER E-PER",
    ],
)
def test_tagger_of_another_scheme_is_scored_and_written_as_iob2(trained, ner_files, tmp_path, tags):
    results, output_dir = trained
    shutil.copytree(output_dir / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    own = [config["id2label"][str(i)] for i in range(5)]
    assert own == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    config["id2label"] = {str(i): tag for i, tag in enumerate(tags.split())}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "words.conll").write_text("d\na\nb\n\nc\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=tmp_path / "model",
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["accuracy"] == results["accuracy"]
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\nb I-PER\n\nc B-LOC\n\n"


@pytest.fixture
def public(trained, tmp_path):
    """Returns the tagger as transformers saves it: without a pooler and label names."""
    shutil.copytree(trained[1] / "model", tmp_path / "public")
    file = tmp_path / "public" / "model.safetensors"
    save_file({name: v for name, v in load_file(file).items() if "pooler" not in name}, file)
    config = json.loads((tmp_path / "public" / "config.json").read_text())
    config["id2label"] = {str(index): f"LABEL_{index}" for index in range(5)}
    (tmp_path / "public" / "config.json").write_text(json.dumps(config))
    return tmp_path / "public"


def test_tagger_without_pooler_and_names_is_scored_with_given_names(
    trained, ner_files, public, tmp_path, caplog
):
    with pytest.raises(InputError, match=r"public: has no label names; expected .* --label_names"):
        run(ner_files, tmp_path / "out", init_checkpoint=public, do_train=False)
    with caplog.at_level("INFO", "absl"):
        again = run(
            ner_files,
            tmp_path / "out",
            init_checkpoint=public,
            do_train=False,
            label_names=["O", "B-LOC", "I-LOC", "B-PER", "I-PER"],
        )
    assert again["f1"] == trained[0]["f1"]
    assert "weights loaded" in caplog.text
    assert "encoder/pooler" not in caplog.text


def test_tagger_whose_labels_are_types_is_scored_and_written_as_iob2(
    trained, ner_files, public, tmp_path
):
    config = json.loads((public / "config.json").read_text())
    names = ["O", "LOC", "ORG", "PER", "MISC"]  # In the run: O B-LOC I-LOC B-PER I-PER.
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    (public / "config.json").write_text(json.dumps(config))
    (tmp_path / "words.conll").write_text("d\na\na\n\nc\nd\na\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=public,
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["f1_LOC"] > 0.5
    assert {"f1_PER", "f1_ORG", "f1_MISC"} <= again.keys()
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\na I-PER\n\nc B-LOC\nd O\na B-PER\n\n"


def test_model_of_another_task_is_rejected(ner_files, public, tmp_path):
    config = json.loads((public / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(index): name for index, name in enumerate("abcde")}
    (public / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"public: is a BertForSequenceClass.*; expected a tagger"):
        run(ner_files, tmp_path / "out", init_checkpoint=public, do_train=False)


@pytest.mark.slow
def test_wrong_predictions_are_written_to_tensorboard(ner_files, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(ner_files, tmp_path / "out", num_train_epochs=0.1, learning_rate=0.0, do_predict=False)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    table = events.Tensors("wrong_predictions")[0].tensor_proto.string_val[0].decode()
    assert table.startswith("| where | sentence | missed | wrong |")
    assert "dev.conll:" in table


@pytest.mark.slow
def test_training_works_with_context_and_tags_on_all_tokens(ner_files, tmp_path):
    lines = (ner_files / "train.conll").read_text()
    (tmp_path / "train.conll").write_text(f"-DOCSTART- O\n\n{lines}-DOCSTART- O\n\n{lines}")
    results = run(
        ner_files,
        tmp_path / "out",
        train_file=str(tmp_path / "train.conll"),
        document_context=True,
        label_all_tokens=True,
        num_train_epochs=1.0,
        do_predict=False,
    )
    assert results["f1"] > 0.5


BILOU = {("B", "I"): "B", ("I", "I"): "I", ("I", ""): "L", ("B", ""): "U"}


@pytest.mark.slow
def test_rows_of_words_in_bilou_train_to_the_same_bits(ner_files, tmp_path):
    for name in ("train", "dev", "test"):
        lines = []
        for sentence in read_conll(ner_files / f"{name}.conll"):
            following = [*sentence.tags[1:], "O"]
            tags = [
                tag if tag == "O" else BILOU[tag[0], "I" if after[0] == "I" else ""] + tag[1:]
                for tag, after in zip(sentence.tags, following, strict=True)
            ]
            lines.append(json.dumps({"tokens": sentence.words, "ner_tags": tags}) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = {
        "train_file": str(tmp_path / "train.jsonl"),
        "eval_file": str(tmp_path / "dev.jsonl"),
        "test_file": str(tmp_path / "test.jsonl"),
    }
    results = [
        run(ner_files, tmp_path / "conll", num_train_epochs=1.0),
        run(ner_files, tmp_path / "rows", num_train_epochs=1.0, **files),
    ]
    assert results[0] == results[1]
    for name in ("model/model.safetensors", "model/config.json", "predictions.conll"):
        one, two = ((tmp_path / form / name).read_bytes() for form in ("conll", "rows"))
        assert one == two, name


def test_changed_training_files_are_rejected(trained, ner_files, tmp_path):
    text = (ner_files / "train.conll").read_text()
    changes = {"another tag": ("d\tO", "d\tB-LOC"), "another word": ("\nd\t", "\ne\t")}
    for name, (old, new) in changes.items():
        assert old in text
        path = tmp_path / f"{name}.conll"
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=r"other settings: train_sha256 was"):
            run(ner_files, trained[1], train_file=str(path))


def test_type_only_in_dev_is_rejected_before_the_folder_is_touched(ner_files, tmp_path):
    (tmp_path / "dev.conll").write_text("a B-ORG\n")
    with pytest.raises(InputError, match=r"dev\.conll, line 1: tag 'B-ORG', but .*train\.conll"):
        run(ner_files, tmp_path / "out", eval_file=str(tmp_path / "dev.conll"))
    assert not (tmp_path / "out").exists()


def test_checkpoint_without_tags_cannot_predict(ner_files, tmp_path):
    with pytest.raises(InputError, match=r"bert: has no label names; expected a tagger"):
        run(ner_files, tmp_path / "out", do_train=False)
