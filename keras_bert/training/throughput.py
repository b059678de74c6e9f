"""Finds the peak rate and memory of the devices, and counts the operations of a training step."""

import re
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

if TYPE_CHECKING:
    from keras_bert.training.objective import Batch

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
    rates = (rate for name, rate in _PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device))
    return 1e12 * devices * (peak_tflops or next(rates, 0))


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


# --- operations ---


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
