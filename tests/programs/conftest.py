"""The input files of all training programs, with tiny models, and flags that train on them."""

import json
from pathlib import Path

import pytest

from keras_bert.config import BertConfig

# Two phases like those of bert-base.toml, as small as possible.
RECIPE = """
[flags]
learning_rate = 1e-4
num_warmup_steps = 1
train_batch_size = 4
[[phase]]
num_train_steps = 30
data = { max_seq_length = 16, max_predictions_per_seq = 3 }
[[phase]]
num_train_steps = 40
continue_optimizer = true
data = { max_seq_length = 32, max_predictions_per_seq = 3 }
"""
TEXTS = [f"{'very ' * (i % 4)}{('bad', 'good')[i % 2]} film .\t{i % 2}\n" for i in range(64)]
WORDS = ["good", "bad", "film", "book", "very", "who", "swore", "rollo", "b", "x", "?", "."]
FINE_TUNE = {"init_checkpoint": "bert", "max_seq_length": 16, "train_batch_size": 8}
FINE_TUNE |= {"mixed_precision": "float32"}
CUSTOM = {"task_name": "custom", "train_file": "texts.tsv", "eval_file": "texts.tsv"}
PRETRAIN = {"bert_config": "config.json", "train_batch_size": 4, "mixed_precision": "float32"}
ADAPT = {"input_file": "documents", "input_format": "mixed", "init_checkpoint": "pretrained"}
ADAPT |= {"max_seq_length": 16, "min_frequency": 1000, "mixed_precision": "float32"}
# {program: flags with which it trains on the files of `place`}
FLAGS = {
    "run_classifier.py": FINE_TUNE | CUSTOM,
    "run_ner.py": FINE_TUNE | {"train_file": "words.conll"},
    "run_squad.py": FINE_TUNE | {"train_file": "squad.json", "max_query_length": 8},
    "run_embedding.py": FINE_TUNE | {"train_file": "pairs.tsv"},
    "run_pretraining.py": PRETRAIN | {"input_file": "records/16.tfrecord", "num_warmup_steps": 4},
    "adapt.py": ADAPT,
}


@pytest.fixture(scope="session")
def place(pretrained, make_checkpoint, write_records, tmp_path_factory) -> Path:
    """Creates a folder with models and the input of each program. Tests write elsewhere."""
    from tests.programs.test_adapt import write_documents

    place = tmp_path_factory.mktemp("place")
    (place / "pretrained").symlink_to(pretrained)
    make_checkpoint(place / "bert", WORDS, initializer_range=0.2)
    (place / "texts.tsv").write_text("text\tlabel\n" + "".join(TEXTS))
    (place / "glue" / "SST-2").mkdir(parents=True)
    for name, rows in (("train", TEXTS), ("dev", TEXTS[:20])):
        (place / f"glue/SST-2/{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    (place / "glue/SST-2/test.tsv").write_text("index\tsentence\n0\tgood film .\n1\tbad .\n")
    (place / "words.conll").write_text("good B-X\nfilm O\n\nbad O\nfilm O\n\n" * 32)
    pairs = [f"good {'very ' * i}\tfilm {'bad ' * i}" for i in range(32)]
    (place / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    scored = [
        {
            "text_a": f"{'very ' * (i % 3)}{('bad', 'good')[i % 2]} film",
            "text_b": f"a {('bad', 'good')[i // 2 % 2]} book .",
            "score": 5.0 if i % 2 == i // 2 % 2 else i % 3,
        }
        for i in range(12)
    ]
    (place / "sts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    answers = [{"text": "Rollo", "answer_start": 0}]
    questions = [{"id": str(i), "question": "Who swore?", "answers": answers} for i in range(64)]
    for name, context in (("squad", "Rollo swore."), ("misplaced", "Charles swore.")):
        paragraphs = [{"context": context, "qas": questions}]
        (place / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    for length in (16, 32):
        write_records(place / "records" / f"{length}.tfrecord", 50, length=length)
    write_records(place / "eval.tfrecord", 20, seed=1)
    BertConfig(50, 16, 1, 2, 32, max_position_embeddings=32).to_json(place / "config.json")
    (place / "recipe.toml").write_text(RECIPE)
    write_documents(place / "documents")
    return place
