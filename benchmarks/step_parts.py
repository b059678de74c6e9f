"""Records the times of the collectives in a training step, and splits the step into its parts.

The collectives are operations in which all workers exchange values. Times are recorded before and
after each collective, so that the parts add up to the step:

- input: from the call of the step until its batch is available, including communication between the
  workers about the batch;
- sum of counts: all-reduce of the numbers of labels, tokens and examples; the forward pass may
  begin before it ends;
- forward and backward: the arithmetic, which is divided between the workers;
- waiting: from the time when a worker has its gradient until the slowest worker has its own;
- all-reduce: from the slowest worker's gradient until the sum is available (with one micro-batch
  per step, also the arithmetic);
- update: norm, clipping and AdamW; each worker does all of it;
- host loop: from the end of a call to the next call: agreement on a stop, checks, metrics.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

# Recorded times of a step, in order.
MOMENTS = ("called", "batch", "counted", "computed", "summed", "returned", "again")


@contextlib.contextmanager
def recording(num_counts: int) -> Iterator[dict[str, Any]]:
    """Records the times of the collectives in a step that is traced during the block.

    `num_counts` is the number of values in the "sum of counts". Yields {moment: variable} for the
    inner MOMENTS; the variables have the times of the last step in seconds since 1970.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context().__class__
    context = next(c for c in context.__mro__ if "all_reduce" in vars(c))
    all_reduce = context.all_reduce
    moments = {name: tf.Variable(0.0, dtype=tf.float64) for name in MOMENTS[1:5]}

    @tf.autograph.experimental.do_not_convert
    def noted(self: Any, op: Any, value: Any, options: Any = None) -> Any:
        if isinstance(value, list):
            begin, end = "computed", "summed"
        elif value.shape == [num_counts]:
            begin, end = "batch", "counted"
        else:  # Sums of losses, computed just before the gradients.
            return all_reduce(self, op, value, options)
        value = note(begin, value)
        return note(end, all_reduce(self, op, value, options))

    def note(moment: str, value: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(value)):
            now = moments[moment].assign(tf.timestamp())
        with tf.control_dependencies([now]):
            return tf.nest.map_structure(tf.identity, value)

    context.all_reduce = noted
    try:
        yield moments
    finally:
        context.all_reduce = all_reduce


def parts_of(workers: tuple[dict[str, float], ...]) -> dict[str, float]:
    """Splits one step into its parts, given {moment: time in seconds} of each worker.

    Returns {part: seconds}, the means over the workers.
    """
    slowest = max(moments["computed"] for moments in workers)
    splits = []
    for at in workers:
        splits.append(
            {
                "input": at["batch"] - at["called"],
                "sum of counts": at["counted"] - at["batch"],
                "forward and backward": at["computed"] - at["counted"],
                "waiting": slowest - at["computed"],
                "all-reduce": at["summed"] - slowest,
                "update": at["returned"] - at["summed"],
                "host loop": at["again"] - at["returned"],
            }
        )
    return {part: sum(split[part] for split in splits) / len(splits) for part in splits[0]}
