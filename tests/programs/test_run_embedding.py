"""Runs run_embedding.py as a user does: scored pairs, pairs, resume, evaluation, invalid input."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.tasks.load import load
from keras_bert.tasks.long_text import LongText

COMMON = {"init_checkpoint": "bert", "max_seq_length": 16, "learning_rate": 0.01}
COMMON |= {"mixed_precision": "float32", "num_train_epochs": 2, "train_batch_size": 4}


@pytest.fixture(scope="module")
def place(make_checkpoint, tmp_path_factory):
    """Creates a working folder with a model, scored pairs and pairs."""
    folder = tmp_path_factory.mktemp("place")
    words = ["good", "bad", "film", "book", "very", "."]
    make_checkpoint(folder / "bert", words, initializer_range=0.2)
    scored = [
        {
            "text_a": f"{'very ' * (i % 3)}{('bad', 'good')[i % 2]} film",
            "text_b": f"a {('bad', 'good')[i // 2 % 2]} book .",
            "score": 5.0 if i % 2 == i // 2 % 2 else i % 3,
        }
        for i in range(12)
    ]
    (folder / "sts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    pairs = ["anchor\tpositive", "good film\tgood book", "bad film\tbad book", "film\t. .", "a\tb"]
    (folder / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    return folder


def run(run_program, place, *arguments, **flags):
    return run_program("run_embedding.py", "--nojit_compile", *arguments, cwd=place, **flags)


@pytest.fixture(scope="module")
def scored_run(run_program, place):
    """Trains on scored pairs; returns the finished process and the flags."""
    flags = COMMON | {
        "train_file": "sts.jsonl",
        "eval_file": "sts.jsonl",
        "loss": "cosent",
        "score_range": "0,5",
        "matryoshka_sizes": "16,4",
        "pooling": "cls",
        "output_dir": "out",
        "export": True,
    }
    return run(run_program, place, **flags), flags


@pytest.mark.slow
def test_scored_pairs_are_trained_evaluated_saved_and_exported(scored_run, place):
    done, _ = scored_run
    assert done.returncode == 0, done.stderr
    assert "12 training examples, 3 steps per epoch, 6 steps in total" in done.stderr
    assert "spearman_4 = " in done.stdout
    results = json.loads((place / "out" / "results.json").read_text())
    assert results.keys() >= {"spearman", "pearson", "spearman_4", "step", "best_step"}
    assert results["train_truncated"] == 0
    names = {path.name for path in (place / "out" / "model").iterdir()}
    assert names >= {"model.safetensors", "modules.json", "1_Pooling", "README.md"}
    embedder = load(place / "out" / "model")
    assert (embedder.settings.pooling, embedder.settings.matryoshka_sizes) == ("cls", (16, 4))
    rows = [json.loads(line) for line in (place / "sts.jsonl").read_text().splitlines()]
    texts = ([row["text_a"] for row in rows], [row["text_b"] for row in rows])
    found = embedder.evaluate(texts, [row["score"] / 5 for row in rows])
    assert found["spearman"] == pytest.approx(results["spearman"], abs=1e-3)
    info = json.loads((place / "out" / "export" / "1" / "export.json").read_text())
    assert (info["pooling"], info["matryoshka_sizes"]) == ("cls", [16, 4])


@pytest.mark.slow
def test_finished_run_does_nothing_and_a_changed_setting_is_rejected(
    scored_run, run_program, place
):
    _, flags = scored_run
    again = run(run_program, place, **flags | {"export": False})
    assert again.returncode == 0, again.stderr
    changed = run(run_program, place, **flags | {"export": False, "scale": 30})
    assert changed.returncode == 1
    assert "scale" in changed.stderr


@pytest.mark.slow
def test_model_of_a_run_is_evaluated_with_the_flags_of_the_run(scored_run, run_program, place):
    done = run(
        run_program,
        place,
        "--nodo_train",
        init_checkpoint="out",
        eval_file="sts.jsonl",
        score_range="0,5",
        output_dir="evaluated",
    )
    assert done.returncode == 0, done.stderr
    first, second = (
        json.loads((place / name / "results.json").read_text()) for name in ("out", "evaluated")
    )
    assert second["spearman"] == pytest.approx(first["spearman"], abs=1e-6)


@pytest.mark.slow
def test_windows_give_the_same_vectors_in_the_program_the_api_and_the_export(run_program, place):
    end = {"good": "good " * 12, "bad": "bad " * 12}
    rows = [
        {"text_a": f"a film . {end[a]}", "text_b": f"a book . {end[b]}", "score": (a == b) - i / 20}
        for i, (a, b) in enumerate((a, b) for a in end for b in end)
    ]
    file = place / "long.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = COMMON | {"train_file": file.name, "eval_file": file.name, "loss": "cosent"}
    flags |= {"max_seq_length": 10, "long_text": "windows", "export": True}
    done = run(run_program, place, **flags, output_dir="long")
    assert done.returncode == 0, done.stderr
    assert "8 of 8 texts (train) are truncated to max_seq_length=10 tokens" in done.stderr
    results = json.loads((place / "long" / "results.json").read_text())
    assert (results["train_truncated"], results["dev_truncated"]) == (8, 0)
    texts = ([row["text_a"] for row in rows], [row["text_b"] for row in rows])
    for path in ("model", "export/1"):
        embedder = load(place / "long" / path)
        assert embedder.settings.long_text == LongText("windows")
        found = embedder.evaluate(texts, [row["score"] for row in rows])
        assert found["pearson"] == pytest.approx(results["pearson"], abs=1e-4)
    done = run(
        run_program,
        place,
        "--nodo_train",
        init_checkpoint="long",
        eval_file=file.name,
        output_dir="long_evaluated",
        mixed_precision="float32",
    )
    assert done.returncode == 0, done.stderr
    again = json.loads((place / "long_evaluated" / "results.json").read_text())
    assert again["pearson"] == pytest.approx(results["pearson"], abs=1e-6)


@pytest.mark.slow
def test_micro_batches_give_the_weights_of_whole_batches(run_program, place):
    flags = COMMON | {"train_file": "pairs.tsv", "eval_file": "pairs.tsv"}
    for name, count in (("whole", 1), ("micro", 4)):
        done = run(run_program, place, **flags, output_dir=name, gradient_accumulation_steps=count)
        assert done.returncode == 0, done.stderr
    from safetensors.numpy import load_file

    whole, micro = (
        load_file(place / name / "model" / "model.safetensors") for name in ("whole", "micro")
    )
    for name, value in whole.items():
        assert abs(value - micro[name]).max() < 1e-3, name
    metrics = json.loads((place / "whole" / "results.json").read_text())
    assert metrics.keys() >= {"recall_at_1", "recall_at_5", "recall_at_10"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"train_file": "sts.jsonl", "loss": "cosent"},
            "sts.jsonl, line 1: the score is 5; expected from -1 to 1",
        ),
        (
            {"train_file": "pairs.tsv", "matryoshka_sizes": "17"},
            "--matryoshka_sizes=17: expected different whole numbers from 1 to 16",
        ),
        ({"train_file": "pairs.tsv", "train_batch_size": 1}, "batch size 1: the loss mnrl"),
        ({"train_file": "pairs.tsv", "columns": "negative=no"}, "has no column 'no'; its header"),
        ({"train_file": "pairs.tsv", "columns": "a=b"}, "--columns=a=b: expected ROLE=NAME, "),
        ({"train_file": "pairs.tsv", "score_range": "1"}, "--score_range=['1']: expected"),
        ({"train_file": "pairs.tsv", "scale": 0}, "scale=0.0: expected a finite number above 0"),
        ({"eval_file": "pairs.tsv"}, "--train_file is missing"),
    ],
)
def test_invalid_input_is_one_line_and_writes_nothing(flags, message, run_program, place):
    done = run(run_program, place, **COMMON | flags | {"output_dir": "rejected"})
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert not (place / "rejected").exists()


def test_missing_data_is_explained(run_program, place):
    done = run(run_program, place, init_checkpoint="bert", output_dir="rejected", max_seq_length=16)
    assert done.returncode == 1
    assert "--train_file is missing; expected a file of examples" in done.stderr


@pytest.mark.slow
def test_length_prompts_and_dense_modules_of_the_checkpoint_are_used(run_program, place):
    """Starts from a directory of sentence-transformers 5.4 with a Dense module and a prompt."""
    folder = place / "st"
    embedder = load(place / "bert")
    embedder.save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path, _ in modules[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (folder / "2_Dense" / "config.json").write_text('{"in_features": 16, "out_features": 4}')
    random = np.random.default_rng(0)
    weights = {"linear.weight": random.normal(size=[4, 16]), "linear.bias": np.zeros([4])}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    prompts = {"prompts": {"query": "very "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"keras_bert": None}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": 9}))
    flags = {name: value for name, value in COMMON.items() if name != "max_seq_length"}
    flags |= {"train_file": "pairs.tsv", "eval_file": "sts.jsonl"}
    flags |= {"score_range": "0,5", "init_checkpoint": "st", "export": True}
    for steps in (1, 2):
        out = place / f"dense{steps}"
        done = run(
            run_program, place, **flags, gradient_accumulation_steps=steps, output_dir=out.name
        )
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "run.json").read_text())["settings"]["max_seq_length"] == 9
        results = json.loads((out / "results.json").read_text())
        trained = load(out / "model")
        assert (trained.settings.max_seq_length, trained.settings.pooling) == (9, "cls")
        rows = [json.loads(line) for line in (place / "sts.jsonl").read_text().splitlines()]
        texts = ([row["text_a"] for row in rows], [row["text_b"] for row in rows])
        found = trained.evaluate(texts, [row["score"] / 5 for row in rows])
        assert found["spearman"] == pytest.approx(results["spearman"], abs=1e-3)
        after = load_file(out / "model" / "2_Dense" / "model.safetensors")
        assert not any(np.allclose(after[name], value) for name, value in weights.items())
    vectors = trained.predict(texts[0])["cls"]
    served = load(out / "export" / "1").predict(texts[0])["cls"]
    np.testing.assert_allclose(served, vectors, atol=1e-5)
