"""Cost of pre-training: counts of weights, operations and bytes equal those of the model."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.training.cost import StepShape, flops, memory, parameters

BASE = BertConfig.from_json("base")


@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 3, "intermediate_size": 24}])
def test_parameter_count_equals_that_of_the_model(changes):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2}
    config = BertConfig(**{"num_hidden_layers": 1, "intermediate_size": 32} | sizes | changes)
    weights = BertPretrainer(config).trainable_variables
    assert parameters(config) == sum(int(np.prod(v.shape)) for v in weights)


def test_bert_base_and_large_have_the_sizes_in_the_paper():
    """110 M and 340 M parameters (Devlin et al. 2019, section 3), here with both heads."""
    assert parameters(BASE) == pytest.approx(110e6, rel=0.01)
    assert parameters(BertConfig.from_json("large")) == pytest.approx(336e6, rel=0.01)


def test_flops_are_three_times_those_of_all_matrix_products():
    length, predictions, h, wide, heads = 128, 20, 768, 3072, 12
    products = [  # (count, [m, k], [k, n])
        (12 * 4, (length, h), (h, h)),  # query, key, value, output
        (12, (length, h), (h, wide)),
        (12, (length, wide), (wide, h)),
        (12 * heads, (length, h // heads), (h // heads, length)),  # scores
        (12 * heads, (length, length), (length, h // heads)),  # contexts
        (1, (1, h), (h, h)),  # pooler
        (1, (1, h), (h, 2)),
        (1, (predictions, h), (h, h)),
        (1, (predictions, h), (h, 30_522)),
    ]
    total = sum(3 * count * 2 * m * k * n for count, (m, k), (_, n) in products)
    assert flops(BASE, length, predictions) == total


def test_memory_scales_with_model_batch_and_precision():
    plain = memory(BASE, StepShape(128, 20, 8))
    assert plain.weights == plain.gradients == 4 * parameters(BASE)
    assert plain.optimizer == 8 * parameters(BASE)
    assert plain.total == sum((plain.weights, plain.gradients, plain.optimizer, plain.activations))
    assert memory(BASE, StepShape(128, 20, 16)).activations == 2 * plain.activations
    assert memory(BASE, StepShape(128, 20, 8, micro_batches=2)).gradients == 2 * plain.gradients
    assert memory(BASE, StepShape(128, 20, 8, state_bytes=2)).optimizer == plain.optimizer // 2
    half = memory(BASE, StepShape(128, 20, 8, compute_bytes=2))
    assert half.activations < plain.activations
    assert half.weights > plain.weights  # includes their bfloat16 copies
    recomputed = memory(BASE, StepShape(512, 77, 8, gradient_checkpointing=True))
    deep = replace(BASE, num_hidden_layers=24)
    more = memory(deep, StepShape(512, 77, 8, gradient_checkpointing=True)).activations
    assert recomputed.activations < memory(BASE, StepShape(512, 77, 8)).activations / 3
    assert more - recomputed.activations == 12 * 8 * 512 * 768 * 4  # the input of each layer
