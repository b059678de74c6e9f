"""LinearWarmupDecay against the values in FACTS.md."""

import numpy as np

from keras_bert.training.optimizers import LinearWarmupDecay


def test_schedule_values():
    """Peak 1e-4, 100 steps, 10 warmup steps: the decay is not offset by the warmup."""
    schedule = LinearWarmupDecay(1e-4, num_train_steps=100, num_warmup_steps=10)
    expected = {0: 0, 1: 1e-5, 9: 9e-5, 10: 9e-5, 11: 8.9e-5, 50: 5e-5, 99: 1e-6, 100: 0, 150: 0}
    for step, value in expected.items():
        np.testing.assert_allclose(float(schedule(step)), value, rtol=1e-6, err_msg=str(step))


def test_last_steps_of_a_million_keep_their_precision():
    schedule = LinearWarmupDecay(1e-4, num_train_steps=1_000_000, num_warmup_steps=10_000)
    np.testing.assert_allclose(float(schedule(999_999)), 1e-10, rtol=1e-6)
