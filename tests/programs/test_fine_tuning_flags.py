"""Tests reading the common flags of fine-tuning: contradictory seeds are rejected."""

import pytest
from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs import fine_tuning_flags


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
