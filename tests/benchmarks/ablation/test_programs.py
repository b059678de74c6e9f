"""The programs of benchmarks/ablation.py, in miniature."""

import dataclasses
import json
import lzma

import numpy as np
import pytest

from tests.benchmarks.ablation.conftest import write_recipe

CONFIG = {
    "vocab_size": 120,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}


def write_data(folder):
    """Writes three books of some KB, and a corpus for MRPC and WNUT-17."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "en", "i", "or", "u")]
    # Enough different words for the vocabulary.
    words = ["".join(random.choice(syllables, 3)) for _ in range(400)]

    def sentence():
        return " ".join(random.choice(words, random.integers(4, 12))).capitalize() + "."

    books = folder / "corpus" / "gutenberg-85"
    books.mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        paragraphs = [" ".join(sentence() for _ in range(6)) for _ in range(20)]
        with lzma.open(books / f"{name}.txt.xz", "wt") as file:
            file.write("\n\n".join(paragraphs))
    mrpc = folder / "glue" / "MRPC"
    mrpc.mkdir(parents=True)
    for split in ("train", "dev"):
        rows = [f"{n % 2}\t1\t2\t{sentence()}\t{sentence()}\n" for n in range(40)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (mrpc / f"{split}.tsv").write_text(header + "".join(rows))
    wnut = folder / "ner" / "wnut17"
    wnut.mkdir(parents=True)
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        lines = [
            "".join(f"{word}\t{'B-x' if word[0] == 'b' else 'O'}\n" for word in sentence().split())
            for _ in range(20)
        ]
        (wnut / name).write_text("\n".join(lines))


def write_inputs(folder):
    """Writes the data of a study and a model config, and returns the path of the config."""
    write_data(folder / "data")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    return str(config)


def miniature_plan(ablation, folder, *arms, steps):
    """Returns a plan of arms of the model of CONFIG."""
    return ablation.plan.Plan(
        arms=arms,
        seeds=(0,),
        recipe=write_recipe(folder, steps),
        passes=1,
        vocab_size=CONFIG["vocab_size"],
        pretraining_rates={arms[0].size: 1e-3},
        fine_tuning_rates={arms[0].size: 1e-3},
        held_out=("three.txt.xz", "four.txt.xz"),
    )


@pytest.mark.slow
def test_whole_study_in_miniature(ablation, tmp_path, monkeypatch):
    """Runs all programs of the study: one task, one seed, a checkpoint and features."""
    monkeypatch.setattr(ablation.programs, "NICENESS", 0)  # Other tests use the CPU.
    size = write_inputs(tmp_path)
    arm = ablation.plan.Arm(
        "miniature",
        size,
        "mlm",
        tasks=("MRPC",),
        points=(50,),
        point_tasks=("MRPC",),
        features=("concat_last_four",),
    )
    plan = miniature_plan(ablation, tmp_path, arm, steps=5)
    results = ablation.results.Results(tmp_path / "results", plan)
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    ablation.study.run_study(plan, ablation.study.Selection(), results, folders)
    units = list(ablation.units.units_of(arm, plan))
    assert [unit.key for unit in units] == [
        "pretraining",
        "MRPC/seed-0",
        "WNUT-17 features concat_last_four/seed-0",
        "50%/MRPC/seed-0",
    ]
    assert results.missing(units) == []
    curve = results.get(units[0]).figures["curve"]
    assert [row["step"] for row in curve] == [*range(1, 11)]
    assert [row["length"] for row in curve] == [16] * 5 + [32] * 5
    assert 0 <= results.get(units[1]).figures["last"]["accuracy"] <= 1
    assert 0 <= results.get(units[2]).figures["test"]["f1"] <= 1
    assert not list((tmp_path / "work" / "fine_tuning" / "miniature").iterdir())
    text = ablation.report.report(results, plan)
    assert "| miniature | " in text
    assert all(path.stat().st_size for path in ablation.plots.draw_all(results, plan, tmp_path))

    # The results are kept and the disk is lost: only a missing unit and its model are computed.
    recorded = json.loads((tmp_path / "results" / "miniature.json").read_text())
    entry = recorded["units"].pop("MRPC/seed-0")
    (tmp_path / "results" / "miniature.json").write_text(json.dumps(recorded))
    lost = dataclasses.replace(folders, work=tmp_path / "new_work")
    results = ablation.results.Results(tmp_path / "results", plan)
    ablation.study.run_study(plan, ablation.study.Selection(), results, lost)
    again = json.loads((tmp_path / "results" / "miniature.json").read_text())["units"]
    assert again["MRPC/seed-0"]["figures"] == entry["figures"]
    assert again["pretraining"] == recorded["units"]["pretraining"]
