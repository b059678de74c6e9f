"""Finds the peak rate and the memory of the devices, on both backends, and measures throughput."""

import re
import time
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

if TYPE_CHECKING:
    from keras_bert.training.objective import Batch, StepMetrics

# Peak rates of dense bfloat16 products in TFLOP/s, from datasheets (float16 for V100 and T4). The
# first name that is in the name of a device counts.
_PEAK_TFLOPS = {
    "B200": 2250,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H200 NVL": 835,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "A100": 312,
    "A30": 165,
    "A10": 125,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "V100": 125,
    "T4": 65,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5p": 459,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
}


# --- devices ---


def peak_flops(peak_tflops: float, devices: int) -> float:
    """Returns the peak rate of a number of devices in FLOP/s; 0 if it is unknown.

    `peak_tflops` is that of one device; 0 for the known rate of the first device.
    """
    device = _name_of_device()
    known = (rate for name, rate in _PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device))
    return 1e12 * devices * (peak_tflops or next(known, 0))


def _name_of_device() -> str:
    """Returns the name of the first accelerator; any other text if there is none."""
    if keras.config.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return next(details, {}).get("device_name", "")


def peak_memory() -> int | None:
    """Returns the most bytes that were in use on one of this machine's accelerators, if known."""
    if keras.config.backend() == "jax":
        import jax

        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        return max((each.get("peak_bytes_in_use", 0) for each in stats), default=0) or None
    import tensorflow as tf

    names = [f"GPU:{i}" for i in range(len(tf.config.list_logical_devices("GPU")))]
    infos = map(tf.config.experimental.get_memory_info, names)
    return max((info["peak"] for info in infos), default=None)


# --- throughput ---


def training_flops(model: keras.Model, batch: "Batch", length: Any) -> Any:
    """Counts the floating-point operations of a training step for each row of a batch.

    They are three times those of the forward pass's matrix products, and 0 for models that are not
    BERT. `length` is the number of tokens in a row, with padding; a number, or a float tensor.
    """
    if not hasattr(model, "config"):
        return 0.0
    positions = batch.get("masked_lm_positions")
    if getattr(model.config, "is_decoder", False):  # The head scores the tokens at all positions.
        predictions = length
    else:
        predictions = 0 if positions is None else ops.cast(ops.shape(positions)[1], "float32")
    return 3.0 * model.config.flops_per_row(length, predictions)


class Throughput:
    """Measures the rates of training steps: examples, tokens and model FLOPs utilization (MFU).

    MFU is the share of `peak`, the peak rate of all devices in FLOP/s; it is unknown if `peak` is
    0. The first steps do not count, since they include the compilation.
    """

    def __init__(self, rows_per_example: int = 1, peak: float = 0.0):
        self._rows_per_example, self._peak = rows_per_example, peak
        self._has_compiled = False
        # Rows, tokens, FLOPs and seconds: since the last `close`, and before.
        self._window, self._before = np.zeros(4), np.zeros(4)
        self.restart_clock()

    def restart_clock(self) -> None:
        """Excludes the time since the last `add`, for example of an evaluation."""
        self._since = time.monotonic()

    def add(self, metrics: "StepMetrics") -> None:
        """Adds completed steps, and the time since the last `add` or restart."""
        if self._has_compiled:
            parts = (metrics.examples, metrics.tokens, metrics.flops)
            sums = [part.sum(dtype=np.float64) for part in parts]
            self._window += [*sums, time.monotonic() - self._since]
        self._has_compiled = True
        self.restart_clock()

    def close(self) -> dict[str, float]:
        """Returns {metric: value} of the steps since the last `close`; {} if there are none."""
        window, self._window = self._window, np.zeros(4)
        self._before += window
        return self._rates(window)

    def of_run(self) -> dict[str, float]:
        """Returns {metric: value} of all steps up to the last `close`."""
        return self._rates(self._before)

    def _rates(self, total: np.ndarray) -> dict[str, float]:
        rows, tokens, flops, seconds = total.tolist()
        if not seconds:
            return {}
        rates = {
            "examples_per_second": rows / self._rows_per_example / seconds,
            "tokens_per_second": tokens / seconds,
        }
        return rates | ({"mfu": flops / seconds / self._peak} if self._peak and flops else {})
