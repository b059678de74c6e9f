"""One training step on every device: a global batch in, updated weights and exact sums out.

Losses are sums with weights, divided once by the weight of the whole global batch. The weights
come from the data alone, so they are known before the forward pass: the gradient of each
micro-batch on each device is then already its share of the global gradient, and shares are only
ever added: over micro-batches, then over devices. Clipping sees the global gradient.

    batch {name: [B, ...]} -> weights -> all-reduce -> forward, backward (x micro-batches)
    -> all-reduce -> clip -> optimizer

Row r of a device's share of the batch is of its micro-batch r mod G, so of the same on any number
of devices. Micro-batches of padding alone are not computed: the last ones, while a batch grows
(ramp.py).

Batches may differ in length from step to step; XLA then makes a program of each length. Variables
that are not trainable cost nothing: no gradient goes through what lies below the first trainable.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_bert.optimization.clipping import clip_scale
from keras_bert.training.fusion import compiled
from keras_bert.training.task import Batch, Task

SUM = tf.distribute.ReduceOp.SUM


def make_train_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    task: Task,
    *,
    gradient_accumulation_steps: int = 1,
    max_grad_norm: float = 1.0,
    jit_compile: bool = True,
) -> Callable[..., tf.Tensor]:
    """Builds the compiled function that runs training steps.

    Args:
        strategy: the strategy that the model and the optimizer were made under.
        model: the model that `task.sums` takes.
        optimizer: an optimizer built on the model's trainable variables.
        task: the sums to descend and to report.
        gradient_accumulation_steps: micro-batches that a device cuts its share of a batch into.
        max_grad_norm: the global norm that gradients are clipped to.
        jit_compile: compile forward and backward with XLA, as training/fusion.py does.

    Returns:
        `train_steps(iterator, count)`: takes `count` global batches and returns float32
        [count, 2F + 4] for the task's F figures: a row a step of F sums, F weights, the number of
        real tokens and of real examples (what fills a batch is neither), the gradient norm before
        clipping and the learning rate.
    """
    variables = model.trainable_variables

    def forward_backward(batch: Batch, totals: dict[str, tf.Tensor]):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            sums = task.sums(model, batch, True)
            loss = tf.add_n([sums[name] / (totals[name] + e) for name, e in task.losses.items()])
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        # Dense: Keras optimizers square an IndexedSlices before they sum a token's repetitions.
        return tf.stack([sums[name] for name in task.figures]), [
            tf.convert_to_tensor(gradient) for gradient in gradients
        ]

    forward_backward = compiled(forward_backward, jit_compile)

    # In XLA one pass over weights and moments, where single operations make a dozen.
    @tf.function(jit_compile=jit_compile)
    def update(gradients: list[tf.Tensor], scale: tf.Tensor) -> tf.Tensor:
        rate = optimizer.learning_rate
        for gradient, variable in zip(gradients, variables, strict=True):
            optimizer.update_step(gradient * scale, variable, rate)
        return rate

    def accumulate(batch: Batch, totals: dict[str, tf.Tensor]):
        steps = gradient_accumulation_steps
        if steps == 1:
            return forward_backward(batch, totals)
        micro = {
            name: tf.reshape(
                value, [value.shape[0] // steps, steps, *tf.unstack(tf.shape(value)[1:])]
            )
            for name, value in batch.items()
        }
        filled = tf.reduce_any(micro["example_weights"] > 0, axis=0)
        count = tf.reduce_sum(tf.cast(filled, tf.int32))  # The first ones: padding comes last.

        def add(i, sums, gradients):
            more_sums, more = forward_backward({k: v[:, i] for k, v in micro.items()}, totals)
            return i + 1, sums + more_sums, [a + b for a, b in zip(gradients, more, strict=True)]

        zeros = [tf.zeros(variable.shape) for variable in variables]
        start = (tf.constant(0), tf.zeros([len(task.figures)]), zeros)
        _, sums, gradients = tf.while_loop(lambda i, *_: i < count, add, start)
        return sums, gradients

    def replica_step(batch: Batch) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        weights = task.weights(batch)
        examples = batch["example_weights"]
        tokens = tf.cast(batch["input_mask"], tf.float32) * examples[:, tf.newaxis]
        counts = [tf.reduce_sum(tokens), tf.reduce_sum(examples)]
        known = tf.stack([weights[name] for name in task.figures] + counts)
        known = replica.all_reduce(SUM, known)
        totals = {name: known[i] for i, name in enumerate(task.figures)}
        sums, gradients = accumulate(batch, totals)
        sums = replica.all_reduce(SUM, sums)
        gradients = replica.all_reduce(SUM, gradients)
        # Outside XLA, which sums a norm on one thread. l2_loss makes one pass of it.
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        # Each device updates its own copy from the same gradient. Keras's `apply` would sum over
        # devices a second time; what it does besides (its clipping, its averages) is not done.
        rate = update(gradients, clip_scale(norm, max_grad_norm))
        with tf.control_dependencies([rate]):
            optimizer.iterations.assign_add(1)
        return tf.concat([sums, known, [norm, rate]], axis=0)

    @tf.function
    def train_steps(iterator, count: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, size=count, element_shape=[2 * len(task.figures) + 4])
        for i in tf.range(count):
            row = strategy.run(replica_step, args=(next(iterator),))
            rows = rows.write(i, strategy.experimental_local_results(row)[0])
        return rows.stack()

    return train_steps
