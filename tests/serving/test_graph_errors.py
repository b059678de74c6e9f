"""Messages of failed assertions are the text and the values of the assertion."""

import pytest
import tensorflow as tf

from keras_bert.serving.graph_errors import failed_check
from keras_bert.serving.inputs import in_range, same_shape


@tf.function
def check(x, y):
    x, y = same_shape(x=x, y=y)
    tf.debugging.assert_less_equal(x, 5, "x: expected at most 5")
    return in_range(4, x=x)[0] + y


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1], "y and x: expected equal shapes, got [1] [2]"),
        ([4], [1], "x: expected values from 0 to 3, got [4]"),
        ([1, 7], [1, 1], "x: expected at most 5"),
    ],
)
def test_text_and_values_of_a_check_are_extracted(x, y, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        check(tf.constant(x), tf.constant(y))
    assert failed_check(caught.value.message) == message


@pytest.mark.parametrize("message", ["", "Incompatible shapes: [2] vs. [3] [Op:AddV2]"])
def test_other_errors_have_no_check(message):
    assert failed_check(message) == ""
