"""Implements Adam with decoupled weight decay, as used to train BERT.

Gradients must be those of the global batch, already summed over the devices and clipped.
"""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.common.errors import InputError
from keras_bert.common.random_bits import site_key
from keras_bert.optimization.dense import densify
from keras_bert.optimization.rounding import round_stochastically

# Variables without weight decay: gamma and beta of every LayerNorm (any layer whose name contains
# `LayerNorm` or `layer_norm`) and every bias. Embeddings do decay.
NO_WEIGHT_DECAY = (r"[Ll]ayer_?[Nn]orm[^/]*/[^/]+$", r"bias$")

STATE_DTYPES = ("float32", "bfloat16")

# (gradient, variable, (first moment, second moment), iterations) -> (direction of the update, new
# first moment, new second moment).
Direction = Callable[..., tuple[Any, Any, Any]]


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
            is rounded stochastically (rounding.py). The arithmetic is float32 in both cases.
        name: the optimizer's name.
        **kwargs: other arguments of `keras.optimizers.Optimizer`.

    Raises:
        InputError: a value is out of range, or a regular expression is invalid.

    Source: google-research/bert, optimization.py; Loshchilov and Hutter 2019.
    """

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
        for key, value in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0 <= value < 1:
                raise InputError(f"{key} must lie in [0, 1), got {value!r}")
        for key, value in (("weight_decay", weight_decay), ("epsilon", epsilon)):
            if not value >= 0:
                raise InputError(f"{key} must not be negative, got {value!r}")
        if isinstance(exclude_from_weight_decay, str):
            raise InputError(
                "exclude_from_weight_decay must be a list of regular expressions, "
                f"got the string {exclude_from_weight_decay!r}"
            )
        if state_dtype not in STATE_DTYPES:
            raise InputError(
                f"state_dtype must be one of {', '.join(STATE_DTYPES)}, got {state_dtype!r}"
            )
        self.weight_decay_rate = float(weight_decay)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.state_dtype = state_dtype
        self._shared: dict[bool, Direction] | None = None
        self.excluded = tuple(exclude_from_weight_decay)
        self.learning_rate_multipliers = tuple((p, float(f)) for p, f in learning_rate_multipliers)
        for pattern in (*self.excluded, *(p for p, _ in self.learning_rate_multipliers)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from None

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Raises an InputError: use the constructor argument of this name, which matches paths."""
        raise InputError(
            "exclude_from_weight_decay() cannot be called; pass regular expressions on "
            "variable.path to the constructor's argument of this name"
        )

    def build(self, variables: list[Any]) -> None:
        """Creates two moments per variable, and matches its path to the regular expressions."""
        if self.built:
            return
        super().build(variables)
        paths = [getattr(v, "path", v.name.split(":")[0]) for v in variables]
        moments = [
            (self._moment(variable, f"{path}_m"), self._moment(variable, f"{path}_v"))
            for variable, path in zip(variables, paths, strict=True)
        ]
        self._momentums, self._velocities = [m for m, _ in moments], [v for _, v in moments]
        self._decays = [not any(re.search(p, path) for p in self.excluded) for path in paths]
        self._factors = [
            next((f for p, f in self.learning_rate_multipliers if re.search(p, path)), 1.0)
            for path in paths
        ]

    def _moment(self, variable: Any, path: str) -> Any:
        """Creates a moment in the state dtype, which `add_optimizer_variables` does not support."""
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

        Otherwise, a compiler traces the operations of `update_step` for each variable.

        Args:
            trace_once: takes a pure function of tensors and variables, and returns a function with
                the same results that is traced only once for each shape.
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
        m, v = self._momentums[index], self._velocities[index]
        decays = self._decays[index]
        if self._shared:
            direction_of = self._shared[decays]
        else:
            direction_of = functools.partial(self._direction_of, decays)
        direction, new_m, new_v = direction_of(gradient, variable, (m, v), self.iterations)
        rate = ops.cast(learning_rate, variable.dtype) * self._factors[index]
        self.assign(m, self._as_state(new_m, 2 * index))
        self.assign(v, self._as_state(new_v, 2 * index + 1))
        self.assign_sub(variable, rate * direction)

    def _direction_of(
        self,
        decays: bool,
        gradient: Any,
        variable: Any,
        moments: tuple[Any, Any],
        iterations: Any,
    ) -> tuple[Any, Any, Any]:
        """Returns the direction of a variable's update, and its new moments; a pure function.

        `decays` is whether the variable has weight decay.
        """
        (m, v), dtype = moments, variable.dtype
        gradient = ops.cast(gradient, dtype)
        new_m = self.beta_1 * ops.cast(m, dtype) + (1.0 - self.beta_1) * gradient
        new_v = self.beta_2 * ops.cast(v, dtype) + (1.0 - self.beta_2) * ops.square(gradient)
        direction = self._adam(new_m, new_v, iterations)
        if decays:
            direction = direction + self.weight_decay_rate * variable
            direction = self._adapt(direction, variable)
        return direction, new_m, new_v

    def _adam(self, m: Any, v: Any, iterations: Any) -> Any:
        """Returns `m / (sqrt(v) + epsilon)`, with bias-corrected moments if enabled."""
        if self.bias_correction:
            t = ops.cast(iterations + 1, "float32")
            m = m / ops.cast(_one_minus_power(self.beta_1, t), m.dtype)
            v = v / ops.cast(_one_minus_power(self.beta_2, t), v.dtype)
        return m / (ops.sqrt(v) + self.epsilon)

    def _as_state(self, moment: Any, site: int) -> Any:
        """Casts a moment to the state dtype; `site` selects the random bits of the moment."""
        if self.state_dtype == "float32":
            return moment
        step = ops.reshape(ops.cast(self.iterations, "int32"), (1,))
        return round_stochastically(moment, site_key(step, site))

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
