"""Tests recipes: those of the repository, precedence of settings, and invalid recipes."""

import re
from pathlib import Path

import pytest

from data_tools.settings import Settings
from keras_bert.errors import InputError
from keras_bert.options import options_of
from keras_bert.pretraining.recipe import read_recipe
from keras_bert.pretraining.run import data_command, estimate
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.objective import TrainingSettings

RECIPES = sorted((Path(__file__).parents[2] / "keras_bert" / "recipes").glob("*.toml"))
OPTIONS = options_of(PretrainingSettings) | options_of(TrainingSettings)
DEFAULTS = {name: option.default for name, option in OPTIONS.items()}


def plan(path, scale=1.0, **command_line):
    return read_recipe(str(path), Settings, DEFAULTS, command_line, scale)


def write(folder, text):
    path = folder / "own.toml"
    path.write_text(text)
    return path


def cost(phase, devices=1):
    return estimate(phase, None, devices)


def test_recipe_may_start_with_a_byte_order_mark(tmp_path):
    content = RECIPES[0].read_bytes()
    path = tmp_path / RECIPES[0].name
    path.write_bytes(b"\xef\xbb\xbf" + content)
    assert len(plan(path)) == len(plan(RECIPES[0]))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_each_recipe_is_planned_on_several_devices_with_its_data_command(path):
    devices, accumulation, sequences = (2, 2, 1e5) if path.stem == "small-corpus" else (8, 32, 1e6)
    for phase in plan(path, gradient_accumulation_steps=accumulation):
        length = phase.data["max_seq_length"]
        assert cost(phase, devices)["tokens"] > sequences * length
        assert f"--max_seq_length={length}" in data_command(phase)


@pytest.mark.parametrize("name", ["bert-base", "bert-large"])
def test_paper_recipe_has_90_percent_of_steps_at_128_and_10_at_512(name):
    short, long = plan(name)
    assert [p.record["num_train_steps"] for p in (short, long)] == [900_000, 100_000]
    assert [p.record["max_seq_length"] for p in (short, long)] == [128, 512]
    assert [p.record["schedule_steps"] for p in (short, long)] == [1_000_000] * 2
    assert long.continue_optimizer
    assert cost(short)["tokens"] / 128 + cost(long)["tokens"] / 512 == 256_000_000


def test_lamb_takes_8599_steps_and_warms_up_twice():
    phases = plan("bert-large-lamb")
    assert sum(p.record["num_train_steps"] for p in phases) == 8599
    assert [p.record["train_batch_size"] for p in phases] == [65_536, 32_768]
    assert [p.record["schedule_steps"] for p in phases] == [7038, 1561]
    assert not any(p.continue_optimizer for p in phases)


def test_budget_is_one_day_at_125_teraflops():
    (phase,) = plan("budget-24h")
    assert cost(phase)["flop"] == pytest.approx(125e12 * 86_400, rel=0.03)
    tokens = cost(phase)["tokens"]
    text = (RECIPES[0].parent / "budget-24h.toml").read_text()
    assert f"One epoch needs {tokens / 1e9:.1f} billion tokens" in text


RECIPE = """
[data]
masked_lm_prob = 0.2
[flags]
learning_rate = 1e-3
log_steps = 5
num_warmup_steps = 100
[[phase]]
num_train_steps = 300
data = {max_seq_length = 16, max_predictions_per_seq = 3}
[[phase]]
num_train_steps = 1000
log_steps = 7
data = {max_seq_length = 32, max_predictions_per_seq = 6}
"""


def test_command_line_overrides_phase_and_phase_overrides_shared_flags(tmp_path):
    path = write(tmp_path, RECIPE)
    assert [p.record["log_steps"] for p in plan(path)] == [5, 7]
    assert [p.record["log_steps"] for p in plan(path, log_steps=9)] == [9, 9]
    assert [p.record["max_seq_length"] for p in plan(path)] == [16, 32]
    assert [p.data["max_seq_length"] for p in plan(path, max_seq_length=8)] == [8, 8]


def test_initial_checkpoint_provides_its_config():
    def configs(**given):
        return {phase.record["bert_config"] for phase in plan("bert-base", **given)}

    assert configs() == {"base"}
    assert configs(init_checkpoint="out") == {""}
    assert configs(init_checkpoint="out", bert_config="own.json") == {"own.json"}


def test_scale_reduces_recipe_steps_but_not_command_line_steps(tmp_path):
    path = write(tmp_path, RECIPE)
    shorter = plan(path, scale=0.01)
    assert [p.record["num_train_steps"] for p in shorter] == [3, 10]
    assert [p.record["num_warmup_steps"] for p in shorter] == [1, 1]
    given = plan(path, scale=0.01, num_train_steps=50)
    assert [p.record["num_train_steps"] for p in given] == [50, 50]


@pytest.mark.parametrize("scale", [0.0, 1e305, float("nan")])
def test_invalid_scale_is_rejected(tmp_path, scale):
    with pytest.raises(InputError, match=re.escape(f"--recipe_scale={scale}: expected")):
        plan(write(tmp_path, RECIPE), scale)


def test_paths_of_records_have_the_length_of_the_phase(tmp_path):
    path = write(tmp_path, RECIPE)
    phases = plan(path, input_file="a-{max_seq_length},b-{max_seq_length}")
    assert [p.settings.input_file for p in phases] == ["a-16,b-16", "a-32,b-32"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[flags]", "[flags", r"own\.toml: is not valid TOML: .*line 4"),
        ("[flags]", "[flag]", r"own\.toml: unknown key flag; expected data, flags or phase"),
        ("log_steps = 7", "output_dir = 'x'", r"own\.toml: phase 2: output_dir is not a flag that"),
        ("log_steps = 7", "log_steps = '7'", r"phase 2: log_steps is '7'; expected a whole number"),
        ("masked_lm_prob", "mask_prob", r"own\.toml: data: mask_prob is not a flag that"),
        ("= 0.2", "= 1.2", r"own\.toml: data: masked_lm_prob is 1.2; expected a finite"),
        ("num_train_steps = 300", "", r"own\.toml: phase 1: num_train_steps is missing"),
        (
            "data = {max_seq_length = 16, max_predictions_per_seq = 3}",
            "data = 3",
            r"own\.toml: phase 1: data is 3; expected a table",
        ),
        ("num_train_steps = 300", "continue_optimizer = true", r"phase 1: continue_optimizer is"),
        (
            "log_steps = 7",
            "continue_optimizer = true\nlearning_rate = 1e-4",
            r"phase 2: learning_rate is 0\.0001, but continue_optimizer needs .*0\.001",
        ),
        (RECIPE, "", r"own\.toml: has no \[\[phase\]\]"),
        (RECIPE, "phase = [3]", r"own\.toml: phase 1 is 3; expected a table"),
    ],
)
def test_invalid_recipe_is_rejected_with_file_and_key(tmp_path, old, new, message):
    assert old in RECIPE
    with pytest.raises(InputError, match=message):
        plan(write(tmp_path, RECIPE.replace(old, new)))
