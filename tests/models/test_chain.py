"""Chains: plain functions that an active compiler can replace."""

import pytest

from keras_bert.models.layers import chain, compile_chains_with


@chain
def scaled_sum(a, b, *, scale):
    return (a + b) * scale


def test_chain_without_a_compiler_is_the_plain_function():
    assert scaled_sum(1, 2, scale=10) == 30


def test_active_compiler_receives_function_tensors_and_settings():
    seen = []

    def compiler(function):
        def call(*tensors, **settings):
            seen.append((function.__name__, tensors, settings))
            return function(*tensors, **settings)

        return call

    with compile_chains_with(compiler):
        assert scaled_sum(1, 2, scale=10) == 30
    scaled_sum(3, 4, scale=1)
    assert seen == [("scaled_sum", (1, 2), {"scale": 10})]


def test_error_deactivates_the_compiler():
    with pytest.raises(TypeError), compile_chains_with(lambda function: None):
        scaled_sum(1, 2, scale=10)
    assert scaled_sum(1, 2, scale=10) == 30
