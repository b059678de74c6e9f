"""A tiny embedding model and the optimizers of FACTS.md, written by hand in float64 NumPy.

The model: ids [B, S] -> word embeddings [V, H] -> LayerNorm -> dense [H, O]; the loss is the sum
of squared errors divided by B. Ids repeat inside a batch, so the embedding gradient sums rows.
Weights are in the order of the Keras model: embeddings, gamma, beta, kernel, bias.
"""

import contextlib

import numpy as np

V, H, S, B, OUT, EPSILON = 13, 8, 6, 4, 3, 1e-5
DECAYS = (True, False, False, True, False)
PEAK, TOTAL, WARMUP = 1e-2, 24, 5


def batches(steps: int = 20) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (ids [B, S], targets [B, S, OUT]) for each step; half of the ids are equal."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(steps):
        ids = rng.integers(0, V, (B, S))
        ids[:, ::2] = 3
        found.append((ids.astype("int32"), rng.normal(size=(B, S, OUT)).astype("float32")))
    return found


def start() -> list[np.ndarray]:
    """Returns the initial weights in float32."""
    rng = np.random.default_rng(11)
    shapes = [(V, H), (H,), (H,), (H, OUT), (OUT,)]
    return [(rng.normal(size=s) * 0.5).astype("float32") for s in shapes]


def gradients(weights, ids, targets) -> list[np.ndarray]:
    """Returns the gradient of the loss at `weights`, in their precision."""
    table, gamma, beta, kernel, bias = weights
    x = table[ids]
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    normal = centred / deviation
    y = normal * gamma + beta
    d_out = 2.0 * (y @ kernel + bias - targets) / B
    d_y = d_out @ kernel.T
    d_normal = d_y * gamma
    d_x = d_normal - d_normal.mean(-1, keepdims=True)
    d_x = (d_x - normal * (d_normal * normal).mean(-1, keepdims=True)) / deviation
    d_table = np.zeros_like(table)
    np.add.at(d_table, ids, d_x)
    d_kernel = np.einsum("bsh,bso->ho", y, d_out)
    return [d_table, (d_y * normal).sum((0, 1)), d_y.sum((0, 1)), d_kernel, d_out.sum((0, 1))]


def rate(step: int) -> float:
    """Returns the learning rate of FACTS.md after `step` updates."""
    return PEAK * step / WARMUP if step < WARMUP else PEAK * (1 - step / TOTAL)


def train(rule: str, steps: int = 20) -> list[np.ndarray]:
    """Returns the weights after `steps` clipped updates by "adamw", "adamw_corrected" or "lamb"."""
    weights = [w.astype("float64") for w in start()]
    m = [np.zeros_like(w) for w in weights]
    v = [np.zeros_like(w) for w in weights]
    for step, (ids, targets) in enumerate(batches(steps)):
        grads = gradients(weights, ids, targets.astype("float64"))
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        for i, g in enumerate(grads):
            g = g * min(1.0, 1.0 / norm)
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            m_hat, v_hat = m[i], v[i]
            if rule != "adamw":
                m_hat, v_hat = m_hat / (1 - 0.9 ** (step + 1)), v_hat / (1 - 0.999 ** (step + 1))
            r = m_hat / (np.sqrt(v_hat) + 1e-6)
            if DECAYS[i]:
                r = r + 0.01 * weights[i]
                if rule == "lamb":
                    r = r * (np.linalg.norm(weights[i]) / np.linalg.norm(r))
            weights[i] = weights[i] - rate(step) * r
    return weights


def build(rule: str, **settings):
    """Returns the same model in Keras with the same weights, and its built optimizer."""
    import keras

    from keras_bert.training.optimizers import AdamWeightDecay, Lamb, LinearWarmupDecay

    model = keras.Sequential(
        [
            keras.Input([S], dtype="int32"),
            keras.layers.Embedding(V, H, name="word_embeddings"),
            keras.layers.LayerNormalization(epsilon=EPSILON, name="LayerNorm"),
            keras.layers.Dense(OUT, name="dense"),
        ],
        name="tiny",
    )
    model.set_weights(start())
    schedule = LinearWarmupDecay(PEAK, num_train_steps=TOTAL, num_warmup_steps=WARMUP)
    if rule == "lamb":
        optimizer = Lamb(schedule, **settings)
    else:
        optimizer = AdamWeightDecay(schedule, bias_correction=rule == "adamw_corrected", **settings)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def clipped(gradients) -> list:
    """Returns dense gradients with a global norm of at most 1, as a training step passes them."""
    from keras_bert.training.optimizers import clip_scale, densify, global_norm

    dense = [densify(gradient) for gradient in gradients]
    scale = clip_scale(global_norm(dense))
    return [gradient * scale for gradient in dense]


def variable(path: str, value):
    """Returns a Keras variable with the given path and value."""
    import keras

    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        made = keras.Variable(np.asarray(value, "float32"), name=name)
    assert made.path == path
    return made


def distance(a, b) -> float:
    """Returns the largest difference between two lists of arrays."""
    return max(float(np.abs(np.asarray(x, "float64") - y).max()) for x, y in zip(a, b, strict=True))


def largest_difference(one, two) -> float:
    """Returns the largest difference between two dicts of arrays with the same keys."""
    assert one.keys() == two.keys()
    return max(np.abs(one[name] - two[name]).max() for name in one)
