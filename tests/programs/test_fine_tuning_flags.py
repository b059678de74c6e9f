"""Tests the common flags of fine-tuning: contradictory seeds, and defaults of the API."""

from dataclasses import asdict

import pytest
from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.flags import Definitions
from keras_bert.tasks.fine_tuning.distillation import Distillation


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--seeds=1,2", "--random_seed=7"],
            "--seeds=1,2 and --random_seed=7: expected only one of",
        ),
        (["--seeds=1,2", "--nodo_train"], "--seeds=1,2: has no effect with --nodo_train"),
        (["--seeds=1,1"], "--seeds=1,1: expected different integers"),
    ],
)
def test_seeds_without_effect_are_rejected(arguments, message):
    values = flags.FlagValues()
    flags.DEFINE_string("init_checkpoint", "bert", "", flag_values=values)
    flags.DEFINE_string("output_dir", "out", "", flag_values=values)
    flags.DEFINE_bool("do_train", True, "", flag_values=values)
    flags.DEFINE_integer("random_seed", 12345, "", flag_values=values)
    flags.DEFINE_list("seeds", [], "", flag_values=values)
    values(["program", *arguments])
    with pytest.raises(InputError, match=message):
        fine_tuning_flags.read(values)


def test_the_flags_of_a_teacher_have_the_defaults_of_the_api():
    values = flags.FlagValues()
    fine_tuning_flags.define_teacher(Definitions(values, "program"))
    defaults = asdict(Distillation())
    assert {name: values[name].default for name in defaults} == defaults
