"""Implements the optimizers that train BERT: AdamW and LAMB, and the learning rate.

    gradients -> dense gradients -> global norm -> factor that clips -> AdamWeightDecay or Lamb

Gradients must be those of the global batch, after accumulation and all-reduce. The weight update
of each variable multiplies its gradient by the factor, so the clipped gradients are not all in
memory at once.
"""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.random_bits import random_bits, site_key

_LOW_HALF = 0xFFFF
# Variables without weight decay: gamma and beta of every LayerNorm (any layer whose name contains
# `LayerNorm` or `layer_norm`) and every bias. Embeddings do decay.
NO_WEIGHT_DECAY = (r"[Ll]ayer_?[Nn]orm[^/]*/[^/]+$", r"bias$")
# A larger scale has no benefit: float16 itself spans 40 powers of two.
_LARGEST_SCALE = 2.0**24

# (gradient, variable, state variables, iterations) -> (direction of the update, new state).
Direction = Callable[..., tuple[Any, tuple[Any, ...]]]


# --- gradients ---


def densify(gradient: Any) -> Any:
    """Sums the rows of an IndexedSlices gradient to a dense tensor; returns others unchanged.

    TensorFlow's gradient of `take` on an embedding table [V, ...] is an IndexedSlices with one row
    per token. An optimizer or norm that squares these rows would be wrong for a token that repeats
    in the batch: `(a + b)^2` is not `a^2 + b^2`.
    """
    # Compared by name, because TensorFlow may not be installed. `ops.convert_to_tensor` does not
    # help: in Keras 3.15 it returns an IndexedSlices unchanged.
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    rows = gradient.shape[0] or gradient.dense_shape[0]
    return ops.segment_sum(gradient.values, gradient.indices, num_segments=rows)


def global_norm(gradients: Sequence[Any]) -> Any:
    """Returns the norm of all gradients as one vector, a float32 scalar; ignores None entries."""
    dense = [ops.cast(densify(g), "float32") for g in gradients if g is not None]
    return ops.sqrt(sum(ops.sum(ops.square(g)) for g in dense))


def clip_scale(norm: Any, max_norm: float = 1.0) -> Any:
    """Returns the factor in [0, 1] that clips gradients of the given norm to `max_norm`.

    `norm` is a float32 scalar. If it is inf or NaN, the factor is NaN: a factor of 0 (1 / inf)
    would hide the overflow.

    Source: google-research/bert, optimization.py (`clip_norm=1.0`); Pascanu et al. 2013.
    """
    scale = max_norm / ops.maximum(norm, max_norm)
    return ops.where(ops.isfinite(norm), scale, float("nan"))


# --- optimizers ---


def round_stochastically(x: Any, key: Any) -> Any:
    """Rounds each value up or down to a bfloat16 value, so that the expected value is the input.

    A step of Adam changes the second moment by about a thousandth, less than half of the last of
    bfloat16's 8 bits. Rounding to nearest would discard the change, so the moment would never
    become smaller. Stochastic rounding changes the last bit in some of the steps, which is correct
    on average (Gupta et al. 2015, "Deep learning with limited numerical precision", section 3). The
    random bits are a function of the key, so all devices and resumed runs round to the same values.

    Args:
        x: [...] float32 of a static shape.
        key: [1] int32, from `site_key`.

    Returns:
        [...] bfloat16. Values that bfloat16 can represent, including inf and NaN, are unchanged.
    """
    # bfloat16 is the upper half of float32. A random lower half is added, a carry into the upper
    # half rounds up, and the lower half is then set to zero.
    noise = ops.cast(random_bits(key, math.prod(x.shape), keep_positions=False), "int32")
    noise = ops.reshape(ops.bitwise_and(noise, _LOW_HALF), x.shape)
    bits = ops.bitwise_and(ops.view(x, "int32") + noise, ~_LOW_HALF)
    return ops.cast(ops.view(bits, "float32"), "bfloat16")


@keras.saving.register_keras_serializable(package="keras_bert")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam as in Google's BERT: `w -= lr * (m / (sqrt(v) + epsilon) + weight_decay * w)`.

    Unlike in `keras.optimizers.AdamW`, bias correction is off by default, and epsilon is added
    after the correction. Excluded variables are matched by their whole path, and the rows of sparse
    gradients are summed. Update n, counted from 0, has the schedule's learning rate at n, so the
    first update of a warm-up has learning rate 0.

    Args:
        learning_rate: float or `keras.optimizers.schedules.LearningRateSchedule`.
        weight_decay: factor on the weights in the update.
        beta_1: decay of the first moment, in [0, 1).
        beta_2: decay of the second moment, in [0, 1).
        epsilon: added to the square root of the second moment.
        bias_correction: whether to divide the moments by `1 - beta^t`. BERT was pre-trained without
            it; it stabilizes fine-tuning on small data sets (Mosbach et al. 2021).
        exclude_from_weight_decay: regular expressions; a variable is not decayed if its path
            contains a match.
        learning_rate_multipliers: (regular expression, factor) pairs. The first pair that matches a
            variable's path multiplies its learning rate.
        state_dtype: dtype of the moments, "float32" or "bfloat16", which needs half the memory and
            is rounded stochastically. The arithmetic is float32 in both cases.
        name: the optimizer's name.
        **kwargs: other arguments of `keras.optimizers.Optimizer`.

    Source: google-research/bert, optimization.py; Loshchilov and Hutter 2019.
    """

    state_names: tuple[str, ...] = ("m", "v")  # the variables that each weight has in the optimizer

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        exclude_from_weight_decay: Sequence[str] = NO_WEIGHT_DECAY,
        learning_rate_multipliers: Sequence[tuple[str, float]] = (),
        state_dtype: str = "float32",
        name: str = "adam_weight_decay",
        **kwargs: Any,
    ):
        # weight_decay=None, because the base class would otherwise decay the weights a second time.
        super().__init__(learning_rate=learning_rate, weight_decay=None, name=name, **kwargs)
        self.weight_decay_rate = float(weight_decay)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.state_dtype = state_dtype
        self._shared: dict[bool, Direction] | None = None
        self.excluded = tuple(exclude_from_weight_decay)
        self.learning_rate_multipliers = tuple((p, float(f)) for p, f in learning_rate_multipliers)

    def build(self, variables: list[Any]) -> None:
        """Creates the state of each variable, and matches its path to the regular expressions."""
        if self.built:
            return
        super().build(variables)
        paths = [variable.path for variable in variables]
        self._states = [
            [self._add_state(variable, f"{path}_{name}") for name in self.state_names]
            for variable, path in zip(variables, paths, strict=True)
        ]
        self._decays = [not any(re.search(p, path) for p in self.excluded) for path in paths]
        self._factors = [
            next((f for p, f in self.learning_rate_multipliers if re.search(p, path)), 1.0)
            for path in paths
        ]

    def _add_state(self, variable: Any, path: str) -> Any:
        """Creates a variable in the state dtype, unlike `add_optimizer_variables`."""
        return self.add_variable(
            variable.shape,
            dtype=self.state_dtype,
            layout=getattr(variable, "_layout", None),
            name=path.replace("/", "_"),
        )

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Updates the variables with one gradient each (dense, IndexedSlices or None)."""
        super().apply([densify(g) for g in grads], trainable_variables)

    @contextlib.contextmanager
    def sharing_traces(self, trace_once: Callable[[Direction], Direction]) -> Iterator[None]:
        """Lets the variables of one shape share the trace of their update during the block.

        Otherwise, a compiler traces the operations of `update_step` for each variable. `trace_once`
        takes a pure function of tensors and variables, and returns one with the same results that
        is traced only once for each shape.
        """
        self._shared = {
            decays: trace_once(functools.partial(self._direction_of, decays))
            for decays in (True, False)
        }
        try:
            yield
        finally:
            self._shared = None

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable with operations that a compiler can fuse into a single pass."""
        index = self._get_variable_index(variable)
        states, decays = self._states[index], self._decays[index]
        if self._shared:
            direction_of = self._shared[decays]
        else:
            direction_of = functools.partial(self._direction_of, decays)
        direction, values = direction_of(gradient, variable, tuple(states), self.iterations)
        rate = ops.cast(learning_rate, variable.dtype) * self._factors[index]
        for number, (state, value) in enumerate(zip(states, values, strict=True)):
            self.assign(state, self._as_state(value, len(states) * index + number))
        self.assign_sub(variable, rate * direction)

    def _direction_of(
        self,
        decays: bool,
        gradient: Any,
        variable: Any,
        states: tuple[Any, ...],
        iterations: Any,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns the direction of a variable's update, and its new state; a pure function."""
        dtype = variable.dtype
        states = tuple(ops.cast(state, dtype) for state in states)
        direction, states = self._gradient_step(ops.cast(gradient, dtype), states, iterations)
        if decays:
            direction = direction + self.weight_decay_rate * variable
            direction = self._adapt(direction, variable)
        return direction, states

    def _gradient_step(
        self, gradient: Any, states: tuple[Any, ...], iterations: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns the direction of an update without weight decay, and the new state.

        For Adam, these are `m / (sqrt(v) + epsilon)`, with bias-corrected moments if enabled, and
        both moments. Another optimizer overrides this method and `state_names`.
        """
        m, v = states
        m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        v = self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient)
        states = m, v
        if self.bias_correction:
            first, second = self._corrections(iterations)
            m = m / ops.cast(first, m.dtype)
            v = v / ops.cast(second, v.dtype)
        return m / (ops.sqrt(v) + self.epsilon), states

    def _corrections(self, iterations: Any) -> tuple[Any, Any]:
        """Returns the divisors of both moments for bias correction, float32 scalars."""
        t = ops.cast(iterations + 1, "float32")
        return _one_minus_power(self.beta_1, t), _one_minus_power(self.beta_2, t)

    def kernel_settings(self, learning_rate: Any) -> tuple[Any, Any, Any]:
        """Returns `lr` and `epsilon` of TensorFlow's Adam kernel, and the weight decay per step.

        The kernel updates the moments and then computes `var -= lr * m / (sqrt(v) + epsilon)`. The
        bias correction is part of `lr` and `epsilon`.
        """
        first, second = self._corrections(self.iterations) if self.bias_correction else (1.0, 1.0)
        root = ops.sqrt(second)
        return (
            learning_rate * root / first,
            self.epsilon * root,
            learning_rate * self.weight_decay_rate,
        )

    def variable_settings(self, variable: Any) -> tuple[Sequence[Any], bool, float]:
        """Returns a variable's state, whether it has weight decay, and its rate's multiplier."""
        index = self._get_variable_index(variable)
        return self._states[index], self._decays[index], self._factors[index]

    def _as_state(self, value: Any, site: int) -> Any:
        """Casts a value to the state dtype; `site` selects the random bits of the rounding."""
        if self.state_dtype == "float32":
            return value
        step = ops.reshape(ops.cast(self.iterations, "int32"), (1,))
        return round_stochastically(value, site_key(step, site))

    def _adapt(self, update: Any, variable: Any) -> Any:
        """Returns the update of a variable with weight decay; Lamb overrides this to rescale it."""
        return update

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return super().get_config() | {
            "weight_decay": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "exclude_from_weight_decay": list(self.excluded),
            "learning_rate_multipliers": [list(pair) for pair in self.learning_rate_multipliers],
            "state_dtype": self.state_dtype,
        }


def _one_minus_power(beta: float, t: Any) -> Any:
    """Returns `1 - beta^t` without cancellation, which costs float32 five digits at t = 1."""
    return -ops.expm1(t * (math.log(beta) if beta else -math.inf))


@keras.saving.register_keras_serializable(package="keras_bert")
class Lamb(AdamWeightDecay):
    """LAMB: `r = m^ / (sqrt(v^) + epsilon) + weight_decay * w; w -= lr * (|w| / |r|) * r`.

    m^ and v^ are the bias-corrected moments, and |.| is the norm of one whole variable. The ratio
    |w| / |r| adapts the learning rate to each variable, which large batches need. It is 1 if either
    norm is 0.

    The keyword arguments and errors are those of `AdamWeightDecay`, without `bias_correction`,
    which is always on. Variables that match `exclude_from_weight_decay` are neither decayed nor
    rescaled.

    Source: You et al. 2020, algorithm 2.
    """

    def __init__(self, learning_rate: Any = 1e-3, *, name: str = "lamb", **kwargs: Any):
        super().__init__(learning_rate, bias_correction=True, name=name, **kwargs)

    def _adapt(self, update: Any, variable: Any) -> Any:
        size = ops.norm(variable)
        length = ops.norm(update)
        nonzero = ops.logical_and(size > 0, length > 0)
        # The inner `where` prevents a 0 / 0 in the branch that is not selected.
        return update * ops.where(nonzero, size / ops.where(nonzero, length, 1.0), 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        config = super().get_config()
        del config["bias_correction"]  # always on
        return config


# The optimizers of pre-training by the value of --optimizer.
OPTIMIZERS: dict[str, type[AdamWeightDecay]] = {"adamw": AdamWeightDecay, "lamb": Lamb}


def layer_decay_multipliers(decay: float, num_hidden_layers: int) -> list[tuple[str, float]]:
    """Returns learning-rate multipliers with which lower, more general layers learn more slowly.

    The last block, the pooler and the heads have multiplier 1. Each other block has `decay` times
    the multiplier of the block above it, and the embeddings `decay` times that of the first block.

    Returns:
        (regular expression, factor) pairs for `AdamWeightDecay`; variables without a match have 1.

    Source: Sun et al. 2019, "How to fine-tune BERT for text classification", section 5.3.4.
    """
    if decay == 1:
        return []
    blocks = [
        (rf"(^|/)encoder/layer_{index}/", decay ** (num_hidden_layers - 1 - index))
        for index in range(num_hidden_layers)
    ]
    return [(r"(^|/)encoder/embeddings/", decay**num_hidden_layers), *blocks]


# --- loss scale ---


class LossScale:
    """A scale that doubles after many steps with finite gradients, and halves after each overflow.

    Many gradients of float16 models are below 6e-8, the smallest positive float16 number. The loss
    is therefore multiplied by a large power of two before the backward pass, and the gradients are
    divided by it afterwards. If the scale is so large that a gradient overflows, the step is
    skipped. All devices check the sum of their gradients, so they make the same decision.

    Its variable `scale`, a float32 scalar, is the factor of the loss.

    Args:
        optimizer: creates the two variables of this object, and saves them with its own state.
        initial: the initial scale, a power of two.
        growth_steps: the number of consecutive finite steps after which the scale doubles.

    Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        initial: float = 2.0**15,
        growth_steps: int = 2000,
    ):
        self.growth_steps = growth_steps
        self.scale = optimizer.add_variable(
            (), keras.initializers.Constant(initial), dtype="float32", name="loss_scale"
        )
        self._good_steps = optimizer.add_variable((), dtype="int32", name="good_steps")

    def update(self, is_finite: Any) -> None:
        """Updates the scale; `is_finite`, a bool scalar, is whether all gradients were finite."""
        good_steps = ops.where(is_finite, self._good_steps + 1, 0)
        grows = good_steps >= self.growth_steps
        scale = ops.convert_to_tensor(self.scale)
        grown = ops.where(grows, ops.minimum(scale * 2.0, _LARGEST_SCALE), scale)
        self.scale.assign(ops.where(is_finite, grown, scale * 0.5))
        self._good_steps.assign(ops.where(grows, 0, good_steps))


# --- the learning rate ---


@keras.saving.register_keras_serializable(package="keras_bert")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up `lr * step / warmup`, followed by linear decay `lr * (1 - step / total)`.

    `step` is the number of updates already made, so the first update of a warm-up has rate 0. As in
    Google's code, the decay also counts from step 0, so at the end of the warm-up the rate drops
    from `lr` to `lr * (1 - warmup / total)`. The rate is 0 from step `total` on.

    Args:
        learning_rate: `lr`, the peak; not negative.
        num_train_steps: `total`, the number of updates in the whole run, at least 1.
        num_warmup_steps: `warmup`, the number of updates in the warm-up; 0 for no warm-up.

    Source: google-research/bert, optimization.py.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        self.learning_rate = float(learning_rate)
        self.num_train_steps = int(num_train_steps)
        self.num_warmup_steps = int(num_warmup_steps)
        # What `__call__` computes with: numbers, or variables with these values. The quotients are
        # those of float64, and rounded once.
        self.constants: Sequence[Any] = (
            self.num_train_steps,
            self.learning_rate / self.num_train_steps,
            self.num_warmup_steps,
            self.learning_rate / max(1, self.num_warmup_steps),
        )

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate, a float32 scalar, of the update after `step` updates."""
        total, falling, warmup, rising = self.constants
        # The remaining steps are an integer, which avoids cancellation near the end of a long run.
        step = ops.cast(step, "int32")
        remaining = ops.maximum(ops.cast(total, "int32") - step, 0)
        return ops.where(
            step < ops.cast(warmup, "int32"),
            ops.cast(step, "float32") * rising,
            ops.cast(remaining, "float32") * falling,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }


# --- the optimizer of a run ---


def create_optimizer(
    model: keras.Model,
    learning_rate: float,
    num_train_steps: int,
    num_warmup_steps: int,
    name: str = "adamw",
    *,
    layer_decay: float = 1.0,
    **options: Any,
) -> tuple[AdamWeightDecay, LossScale | None]:
    """Creates an optimizer with its variables for the trainable weights of a model.

    The learning rate increases to `learning_rate` in the warm-up, and then decreases to 0 at
    `num_train_steps`. `name` is a key of OPTIMIZERS, `options` are arguments of its class, and
    `layer_decay` is as in `layer_decay_multipliers`.

    Returns:
        The optimizer; and the loss scale of a float16 model, None for other models.
    """
    optimizer = OPTIMIZERS[name](
        LinearWarmupDecay(learning_rate, num_train_steps, num_warmup_steps),
        learning_rate_multipliers=layer_decay_multipliers(
            layer_decay, model.config.num_hidden_layers
        ),
        **options,
    )
    optimizer.build(model.trainable_variables)
    return optimizer, LossScale(optimizer) if model.compute_dtype == "float16" else None
