"""Learning curves: reading runs, the mean of seeds, the image, invalid input."""

import json
import struct

import numpy as np
import pytest

from keras_bert.programs.plot import PROGRAM, read_run
from keras_bert.programs.program import call


def plot(*arguments):
    return call(PROGRAM, ["keras-bert plot", *map(str, arguments)])


def line(step, **metrics):
    return json.dumps({"step": step} | metrics) + "\n"


def write_run(folder, parts=("masked_lm", "next_sentence"), steps=6, results=None, tail=""):
    """Writes a run that logged every 10 steps and evaluated every 20."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"settings": {}}')
    lines = []
    for step in range(10, 10 * steps + 1, 10):
        metrics = {f"{part}_loss": 5.0 - step / 100 for part in parts}
        metrics |= {"loss": sum(metrics.values())} | {f"{part}_accuracy": 0.25 for part in parts}
        rates = {"learning_rate": 1e-4, "gradient_norm": 1.0, "tokens_per_second": 1000.0 * step}
        lines.append(line(step, **metrics, **rates))
        if step % 20 == 0:
            lines.append(line(step, **{f"eval_{name}": value for name, value in metrics.items()}))
    if lines:
        (folder / "metrics.jsonl").write_text("".join(lines) + tail)
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def size_of(picture):
    assert picture.startswith(b"\x89PNG")
    return struct.unpack(">II", picture[16:24])


def test_phases_of_a_recipe_are_one_curve_up_to_its_last_complete_line(tmp_path):
    write_run(tmp_path / "phase-1", steps=4)
    write_run(tmp_path / "phase-2", steps=0)  # It has not logged yet.
    write_run(tmp_path / "phase-10", steps=2, tail='{"step": 30, "lo')
    (tmp_path / "run.json").write_text("{}")
    run = read_run(tmp_path)
    assert [*run.metrics["loss"]] == [10, 20, 30, 40, 50, 60]
    assert run.metrics["eval_masked_lm_loss"] == pytest.approx({20: 4.8, 40: 4.6, 60: 4.8})
    assert run.results == {}


def test_image_has_a_panel_for_each_loss_and_score(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra keras-bert-pipeline[plot]")
    results = {"step": 60, "masked_lm_loss": 4.3, "unigram_masked_lm_loss": 6.3}
    base = write_run(tmp_path / "base", results=results)
    ltr = write_run(tmp_path / "ltr", ("next_token",), steps=3)
    begun = write_run(tmp_path / "begun", steps=0)
    output = tmp_path / "new" / "curves.png"
    assert plot(base, ltr, begun, f"--output_file={output}") == 0
    width, height = size_of(output.read_bytes())
    assert (width, height) == (1980, 1485)  # 8 panels in rows of 3, and the legend.
    assert f"{base}\n  step = 60\n  masked_lm_loss = 4.3\n" in capsys.readouterr().out


def test_seeds_are_averaged(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra keras-bert-pipeline[plot]")
    for seed, steps in ((0, 6), (1, 4)):
        write_run(tmp_path / f"mlm-seed-{seed}", steps=steps, results={"loss": seed})
    write_run(tmp_path / "linseed-7", results={"loss": 3})
    write_run(tmp_path / "one-seed-2", results={"loss": 4})
    names = ("mlm-seed-0", "mlm-seed-1", "linseed-7", "one-seed-2")
    monkeypatch.chdir(tmp_path)
    assert plot(*names) == 0
    assert capsys.readouterr().out == (
        "mlm-seeds (mean ± standard deviation of 2 runs)\n"
        f"  loss = 0.5 ± {np.std([0, 1], ddof=1):.3g}\n"
        "linseed-7\n  loss = 3\n"
        "one-seed-2\n  loss = 4\n"
    )
    size_of((tmp_path / "curves.png").read_bytes())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "folders of one or more runs; the shortest command is: keras-bert plot out"),
        (["a", "--output_file=a.pdf"], "--output_file=a.pdf: expected a name that ends in .png"),
        (["no_run"], "no_run: has no metrics.jsonl; expected the folder of a run"),
        (["begun"], "begun: no metrics yet; expected a run that logged a step"),
    ],
)
def test_invalid_input_gives_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    write_run(tmp_path / "begun", steps=0)
    monkeypatch.chdir(tmp_path)
    assert plot(*arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
