"""Learning curves: reading runs, writing the image and the page, invalid input."""

import base64
import json
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.training.curves import read_runs, selected_metrics
from keras_bert.training.plot import draw
from keras_bert.training.seeds import average_seeds


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
    (folder / "metrics.jsonl").write_text("".join(lines) + tail)
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def plot(root, *arguments, without=""):
    """Runs the program, optionally as if a package were not installed."""
    hide = f"import sys; sys.modules[{without!r}] = None; " if without else ""
    code = hide + "import runpy; runpy.run_module('keras_bert.training.plot', run_name='__main__')"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_training_and_evaluation_are_read_separately(tmp_path):
    (run,) = read_runs([str(write_run(tmp_path / "a"))])
    assert run.training["loss"][0].tolist() == [10, 20, 30, 40, 50, 60]
    assert run.evaluation["loss"][0].tolist() == [20, 40, 60]
    np.testing.assert_allclose(run.evaluation["masked_lm_loss"][1], [4.8, 4.6, 4.4])
    assert (run.name, run.last_step) == ("a", 60)


def test_incomplete_last_line_is_skipped(tmp_path):
    folder = write_run(tmp_path / "a", tail='{"step": 70, "lo')
    assert read_runs([str(folder)])[0].last_step == 60


def test_plots_are_losses_then_accuracies_then_throughput(tmp_path):
    (run,) = read_runs([str(write_run(tmp_path / "a"))])
    assert selected_metrics([run]) == [
        *("loss", "masked_lm_loss", "next_sentence_loss"),
        *("masked_lm_accuracy", "next_sentence_accuracy", "tokens_per_second"),
    ]


def test_single_loss_is_plotted_if_another_run_has_several(tmp_path):
    folders = [
        write_run(tmp_path / name, parts)
        for name, parts in {
            "ltr": ("next_token",),
            "mlm": ("masked_lm",),
            "both": ("masked_lm", "next_sentence"),
        }.items()
    ]
    ltr, mlm, both = read_runs(map(str, folders))
    rest = ["next_token_accuracy", "masked_lm_accuracy", "tokens_per_second"]
    assert selected_metrics([ltr, mlm]) == ["loss", *rest]
    assert {"masked_lm_loss", "next_sentence_loss"} <= set(selected_metrics([mlm, both]))


def test_runs_of_the_same_name_are_distinguished_by_parent_folder(tmp_path):
    places = ["x/one/out", "y/one/out", "z/two/out", "mine"]
    folders = [str(write_run(tmp_path / place)) for place in places]
    names = [run.name for run in read_runs([*folders, folders[3] + "/"])]
    assert names == ["x/one/out", "y/one/out", "two/out", "mine"]


def test_final_metrics_include_results_and_median_throughput(tmp_path):
    results = {"step": 60, "masked_lm_loss": 4.3, "unigram_masked_lm_loss": 6.3}
    (run,) = read_runs([str(write_run(tmp_path / "a", results=results))])
    metrics = run.final_metrics()
    assert metrics["loss"] == pytest.approx(8.8)
    assert metrics["eval_next_sentence_loss"] == pytest.approx(4.4)
    assert metrics["eval_masked_lm_loss"] == 4.3  # results.json takes precedence.
    assert metrics["unigram_masked_lm_loss"] == 6.3
    assert metrics["tokens_per_second"] == 35_000
    assert not {"learning_rate", "gradient_norm", "step"} & metrics.keys()


def test_baseline_of_a_single_loss_is_also_that_of_the_total_loss(tmp_path):
    results = {"unigram_masked_lm_loss": 6.3, "unigram_masked_lm_accuracy": 0.05}
    folders = [
        write_run(tmp_path / name, parts, results=results)
        for name, parts in {"one": ("masked_lm",), "two": ("masked_lm", "next_sentence")}.items()
    ]
    one, two = read_runs(map(str, folders))
    assert two.baselines == {"masked_lm_loss": 6.3, "masked_lm_accuracy": 0.05}
    assert one.baselines == two.baselines | {"loss": 6.3}


def test_phases_of_a_recipe_are_one_curve(tmp_path):
    folder = tmp_path / "out"
    write_run(folder / "phase-1", steps=4, results={"step": 40})
    write_run(folder / "phase-2", steps=2)
    (folder / "phase-3").mkdir()  # It has not logged yet.
    (folder / "run.json").write_text("{}")
    (run,) = read_runs([str(folder)])
    assert run.training["loss"][0].tolist() == [10, 20, 30, 40, 50, 60]
    assert run.evaluation["loss"][0].tolist() == [20, 40, 60]
    assert (run.phases, run.last_step) == ((40,), 60)
    assert draw([run]).startswith(b"\x89PNG")


def test_runs_of_several_seeds_are_averaged(tmp_path):
    folders = [
        write_run(tmp_path / f"mlm-seed-{seed}", steps=steps, results={"step": 60, "loss": seed})
        for seed, steps in ((0, 6), (1, 4))
    ]
    write_run(tmp_path / "ltr-seed-0")
    write_run(tmp_path / "linseed-7")
    write_run(tmp_path / "mlm")
    lines = (folders[1] / "metrics.jsonl").read_text().splitlines()
    rows = [{**json.loads(text), "masked_lm_loss": 1.0} for text in lines]
    (folders[1] / "metrics.jsonl").write_text("".join(line(**row) for row in rows))
    others = [str(tmp_path / name) for name in ("ltr-seed-0", "linseed-7", "mlm")]
    runs = read_runs([*map(str, folders), *others])
    mean, *rest = average_seeds(runs)
    assert mean.name == "mlm (mean of 2)"
    assert [run.training for run in rest] == [run.training for run in runs[2:]]
    assert [run.count for run in rest] == [1, 1, 1]
    steps, values = mean.training["masked_lm_loss"]
    assert steps.tolist() == [10, 20, 30, 40]
    np.testing.assert_allclose(values, [(5.0 - step / 100 + 1.0) / 2 for step in steps])
    np.testing.assert_allclose(
        mean.deviations["training"]["masked_lm_loss"],
        [np.std([5.0 - step / 100, 1.0], ddof=1) for step in steps],
    )
    np.testing.assert_allclose(mean.deviations["evaluation"]["next_sentence_loss"], [0, 0])
    assert mean.results == {"step": 60, "loss": 0.5}
    assert draw([mean, *rest]).startswith(b"\x89PNG")


def test_seeds_in_folders_of_their_own_are_averaged(tmp_path):
    folders = [f"{task}/seed-{seed}" for task in ("mlm", "ltr") for seed in (0, 1)]
    runs = read_runs([str(write_run(tmp_path / name)) for name in folders])
    assert [run.name for run in average_seeds(runs)] == ["mlm (mean of 2)", "ltr (mean of 2)"]


def test_seeds_without_metrics_are_omitted(tmp_path):
    begun = write_run(tmp_path / "mlm-seed-2", steps=0)
    (begun / "metrics.jsonl").unlink()
    folders = [write_run(tmp_path / f"mlm-seed-{seed}") for seed in (0, 1)]
    (mean,) = average_seeds(read_runs([*map(str, folders), str(begun)]))
    assert mean.count == 2
    (single,) = average_seeds(read_runs([str(folders[0]), str(begun)]))
    assert (single.name, single.count, single.last_step) == ("mlm-seed-0", 1, 60)


def test_seeds_without_common_steps_are_an_error(tmp_path):
    for seed in (0, 1):
        folder = write_run(tmp_path / f"mlm-seed-{seed}", steps=0)
        (folder / "metrics.jsonl").write_text(line(10 + seed, loss=1.0))
    with pytest.raises(InputError, match=r"mlm-seed-0, .*mlm-seed-1: have no step in common"):
        average_seeds(read_runs([str(tmp_path / f"mlm-seed-{seed}") for seed in (0, 1)]))


def test_phases_of_averages_are_kept_if_all_runs_have_them(tmp_path):
    for seed, steps in ((0, 2), (1, 2), (2, 0)):
        write_run(tmp_path / f"a-seed-{seed}" / "phase-1", steps=4, results={"step": 40})
        write_run(tmp_path / f"a-seed-{seed}" / "phase-2", steps=steps)
        (tmp_path / f"a-seed-{seed}" / "run.json").write_text("{}")
    runs = read_runs([str(tmp_path / f"a-seed-{seed}") for seed in range(3)])
    (mean,) = average_seeds(runs[:2])
    assert (mean.phases, mean.last_step) == ((40,), 60)
    assert draw([mean]).startswith(b"\x89PNG")
    (mean,) = average_seeds(runs)
    assert (mean.phases, mean.last_step) == ((), 40)


def test_program_averages_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"mlm-seed-{seed}", results={"step": 60, "loss": 1.0})
    done = plot(tmp_path, "mlm-seed-0", "mlm-seed-1", "--average_seeds", "--output=c.png")
    assert "c.png: learning curves of mlm (mean of 2)" in done.stdout
    assert "<th>mlm (mean of 2)</th>" in (tmp_path / "c.html").read_text()


def test_run_without_metrics_is_plotted_with_other_runs(tmp_path):
    begun = write_run(tmp_path / "begun", steps=0)
    (begun / "metrics.jsonl").unlink()
    runs = read_runs([str(write_run(tmp_path / "a")), str(begun)])
    assert [run.last_step for run in runs] == [60, 0]
    with pytest.raises(InputError, match="begun: no metrics yet"):
        read_runs([str(begun)])


def test_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"nothing: has no metrics\.jsonl; expected the folder"):
        read_runs([str(write_run(tmp_path / "a")), str(tmp_path / "nothing")])


@pytest.mark.slow
def test_image_and_page_with_image_and_table_are_written(root, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra keras-bert-pipeline[plot]")
    base = write_run(tmp_path / "base", results={"unigram_masked_lm_loss": 6.3})
    going = write_run(tmp_path / "<going>", ("next_token",), steps=3, tail='{"st')
    output = tmp_path / "new" / "curves.png"
    done = plot(root, base, going, f"--output={output}")
    assert done.returncode == 0, done.stderr
    picture = output.read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height) >= (1800, 1000)  # 8 panels in rows of 3.
    page = (output.with_suffix(".html")).read_text()
    assert base64.b64decode(re.search('base64,([^"]*)', page)[1]) == picture
    assert "http" not in page
    rows = dict(re.findall(r"<tr><th>(\S*)</th>(<td>.*)</tr>", page))
    assert rows["step"] == "<td>60</td><td>30</td>"
    assert rows["state"] == "<td>finished</td><td>not finished</td>"
    assert rows["loss"] == "<td>8.8</td><td>4.7</td>"
    assert rows["eval_next_token_loss"] == "<td>–</td><td>4.8</td>"
    assert rows["unigram_masked_lm_loss"] == "<td>6.3</td><td>–</td>"
    assert "<th>&lt;going&gt;</th>" in page


def test_plot_does_not_import_tensorflow(root):
    code = "import sys, keras_bert.training.plot; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "without", "words"),
    [
        ([], "", "expected the folders of one or more runs"),
        (["no_run", "--output=a.pdf"], "", "--output=a.pdf: expected a name that ends in .png"),
        (
            ["no_run"],
            "matplotlib",
            "plots need it: pip install 'keras-bert-pipeline[plot]'",
        ),
    ],
)
def test_invalid_input_exits_with_code_1_and_one_line(root, arguments, without, words):
    done = plot(root, *arguments, without=without)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
