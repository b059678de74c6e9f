"""Runs run_embedding.py as a user does: scored pairs, resume, evaluation, hard negatives, BEIR."""

import json

import pytest

from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.load import load
from keras_bert.tasks.retrieval import read_beir
from tests.tasks.test_retrieval import write_beir

COMMON = {"init_checkpoint": "bert", "max_seq_length": 16, "learning_rate": 0.01}
COMMON |= {"mixed_precision": "float32", "num_train_epochs": 2, "train_batch_size": 4}


def run(run_program, place, *arguments, **flags):
    return run_program("run_embedding.py", "--nojit_compile", *arguments, cwd=place, **flags)


@pytest.fixture(scope="module")
def scored_run(run_program, place, tmp_path_factory):
    """Trains on scored pairs; returns the finished process and the flags."""
    flags = COMMON | {
        "train_file": "sts.jsonl",
        "eval_file": "sts.jsonl",
        "loss": "cosent",
        "score_range": "0,5",
        "matryoshka_sizes": "16,4",
        "pooling": "cls",
        "output_dir": tmp_path_factory.mktemp("scored"),
        "export": True,
        "examples": False,
    }
    return run(run_program, place, **flags), flags


@pytest.mark.slow
def test_scored_pairs_are_trained_evaluated_saved_and_exported(scored_run, place):
    done, flags = scored_run
    out = flags["output_dir"]
    assert done.returncode == 0, done.stderr
    assert "Training: 6 steps of 4 examples, 2 epochs of 12 examples\n" in done.stderr
    assert "spearman_4 = " in done.stdout
    results = json.loads((out / "results.json").read_text())
    assert results.keys() >= {"spearman", "pearson", "spearman_4", "step", "best_step"}
    assert results["train_truncated"] == 0
    names = {path.name for path in (out / "model").iterdir()}
    assert names >= {"model.safetensors", "modules.json", "1_Pooling", "README.md"}
    embedder = load(out / "model")
    assert (embedder.settings.pooling, embedder.settings.matryoshka_sizes) == ("cls", (16, 4))
    rows = [json.loads(line) for line in (place / "sts.jsonl").read_text().splitlines()]
    texts = ([row["text_a"] for row in rows], [row["text_b"] for row in rows])
    found = embedder.evaluate(texts, [row["score"] / 5 for row in rows])
    assert found["spearman"] == pytest.approx(results["spearman"], abs=1e-3)
    info = json.loads((out / "export" / "1" / "export.json").read_text())
    assert (info["pooling"], info["matryoshka_sizes"]) == ("cls", [16, 4])
    assert "examples" not in info


@pytest.mark.slow
def test_model_of_a_run_is_evaluated_with_the_flags_of_the_run(
    scored_run, run_program, place, tmp_path
):
    out = scored_run[1]["output_dir"]
    flags = {"init_checkpoint": out, "eval_file": "sts.jsonl", "output_dir": tmp_path / "out"}
    done = run(run_program, place, "--nodo_train", **flags)
    assert done.returncode == 0, done.stderr
    first, second = (
        json.loads((folder / "results.json").read_text()) for folder in (out, tmp_path / "out")
    )
    assert second["spearman"] == pytest.approx(first["spearman"], abs=1e-6)


# --- hard negatives, BEIR directories ---

WORDS = ("good", "bad", "film", "book", "who", "swore", "rollo", "very")


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Writes a directory in which each query has the relevant document with the same words."""
    texts = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[4:] for c in ("x", "b")]
    corpus = [{"_id": f"d{i}", "title": t[:-2], "text": t[-1]} for i, t in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": f"{t} ?"} for i, t in enumerate(texts)]
    judgments = [f"q{i}\td{i}\t1" for i in range(len(texts))]
    header = "query-id\tcorpus-id\tscore"
    splits = {"train": [header, *judgments[8:]], "dev": [header, *judgments[:8]]}
    return write_beir(tmp_path_factory.mktemp("beir") / "words", corpus, queries, **splits)


@pytest.mark.slow
def test_negatives_are_mined_once_and_trained_on(run_program, place, beir, tmp_path):
    flags = COMMON | {"train_file": beir, "output_dir": tmp_path / "mined"}
    mining = {"mine_negatives": 2, "skip_top": 1, "margin": -0.5}
    done = run(run_program, place, **flags, **mining)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "mined").iterdir()}
    assert names == {"run.json", "results.json", "triplets.jsonl"}
    file = tmp_path / "mined" / "triplets.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert f"triplets = {len(rows)}\n" in done.stdout
    embedder = TextEmbedder.from_pretrained(place / "bert", 16)
    data = read_beir(beir, "train")
    names = {"num_negatives": 2, "skip_top": 1, "margin": -0.5}
    triplets = embedder.mine_negatives(data, **names)
    assert [tuple(row.values()) for row in rows] == list(zip(*triplets, strict=True))
    assert len(rows) == 2 * len(data.relevance)
    before = file.stat().st_mtime_ns
    again = run(run_program, place, **flags, **mining)
    assert again.returncode == 0, again.stderr
    assert "is finished; nothing to do" in again.stderr
    assert file.stat().st_mtime_ns == before
    changed = run(run_program, place, **flags, **mining | {"skip_top": 0})
    assert "skip_top was 1 and is now 0" in changed.stderr
    flags |= {"train_file": file, "columns": "negative=negative", "output_dir": tmp_path / "out"}
    trained = run(run_program, place, **flags, eval_file=beir / "qrels" / "dev.tsv")
    assert trained.returncode == 0, trained.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = load(tmp_path / "out").evaluate(beir / "qrels" / "dev.tsv")
    assert found["ndcg_at_10"] == pytest.approx(results["ndcg_at_10"], abs=1e-6)
    assert found.keys() < results.keys()


@pytest.mark.slow
def test_pairs_of_a_directory_are_trained_on_with_the_settings_of_the_checkpoint(
    run_program, place, beir, tmp_path
):
    TextEmbedder.from_pretrained(place / "bert", 9, pooling="cls").save_pretrained(tmp_path / "st")
    flags = COMMON | {"train_file": beir, "eval_file": beir / "qrels" / "dev.tsv"}
    flags |= {"num_train_steps": 1, "init_checkpoint": tmp_path / "st"}
    del flags["max_seq_length"]
    done = run(run_program, place, **flags, output_dir=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "1 steps of 4 examples" in done.stderr
    assert "ndcg_at_10 = " in done.stdout
    settings = load(tmp_path / "out").settings
    assert (settings.max_seq_length, settings.pooling) == (9, "cls")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"train_file": "pairs.tsv", "skip_top": 2}, "--skip_top: has no effect without --mine_ne"),
        ({"mine_negatives": 1, "loss": "cosent"}, "--loss=cosent: mining needs pairs; expected"),
        ({"mine_negatives": 1, "eval_file": "sts.jsonl"}, "--eval_file: has no effect with --mine"),
        ({"loss": "cosent"}, "words: is a BEIR directory, which has pairs; expected --loss=mnrl"),
        (
            {"mine_negatives": 1, "skip_top": 99},
            "words/qrels/train.tsv: no query has 1 or more neg",
        ),
        (
            {"mine_negatives": 1, "columns": "anchor=a"},
            "words: is a BEIR directory, which has pair",
        ),
        ({"eval_file": "words"}, "qrels/test.tsv: does not exist; expected one of "),
        ({"eval_file": "glue"}, "glue/qrels/test.tsv: does not exist; expected a BEIR directory"),
    ],
)
def test_invalid_retrieval_flags(run_program, place, beir, tmp_path, flags, message):
    flags = COMMON | {"train_file": beir, "output_dir": tmp_path / "out"} | flags
    flags |= {"eval_file": beir} if flags.get("eval_file") == "words" else {}
    done = run(run_program, place, **flags)
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("run_embedding.py: error: ")
    assert message in line
    assert not (tmp_path / "out").exists()
