"""Creates the pre-training steps that training_step.py, jax_step.py and memory.py measure.

A step does a forward pass, a backward pass and an update on one batch, and returns the loss. All
contenders have the same sizes, losses and optimizer settings: logits at the masked positions only,
masked-LM and next-sentence losses, gradients clipped to global norm 1, and AdamW with weight decay
0.01.
"""

import json
import sys
from collections.abc import Callable

import numpy as np
from workers import ROOT

V = 30522  # vocabulary size
Step = Callable[[], float]


def read_config(name: str) -> dict:
    """Reads a bundled config, with V as its vocabulary size."""
    path = ROOT / "keras_bert" / "configs" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) | {"vocab_size": V}


def example_batch(rows: int, length: int, predictions: int) -> dict[str, np.ndarray]:
    """Creates a batch of random tokens without padding: {name in pre-training records: array}."""
    random = np.random.default_rng(0)
    positions = [
        random.choice(np.arange(1, length - 1), predictions, replace=False) for _ in range(rows)
    ]
    ints = {
        "input_ids": random.integers(1000, V, (rows, length)),
        "input_mask": np.ones((rows, length)),
        "segment_ids": np.repeat([np.arange(length) >= length // 2], rows, axis=0),
        "masked_lm_positions": np.sort(positions, axis=1),
        "masked_lm_ids": random.integers(1000, V, (rows, predictions)),
        "next_sentence_labels": random.integers(0, 2, (rows,)),
        "dropout_seed": random.integers(0, 2**31 - 1, (rows,)),
    }
    floats = {
        "masked_lm_weights": np.ones((rows, predictions)),
        "example_weights": np.ones((rows,)),
    }
    return {name: values.astype("int32") for name, values in ints.items()} | {
        name: values.astype("float32") for name, values in floats.items()
    }


def step_flops(config: dict, rows: int, length: int, predictions: int) -> float:
    """Counts the floating-point operations of a step's matrix products, forward and backward."""
    sys.path.insert(0, str(ROOT))
    from keras_bert.config import BertConfig

    return 3.0 * rows * BertConfig.from_dict(config).flops_per_row(length, predictions)


def make_ours(
    config: dict,
    batch: dict[str, np.ndarray],
    dtype: str,
    state_dtype: str = "float32",
    gradient_checkpointing: bool = False,
) -> Step:
    """Creates a step of keras_bert on TensorFlow: its model, optimizer, objective and step."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import PretrainingObjective
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps

    model = BertPretrainer(
        BertConfig.from_dict(config), dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype
    )
    optimizer = AdamWeightDecay(1e-4, state_dtype=state_dtype)
    optimizer.build(model.trainable_variables)
    task = PretrainingObjective()
    state, strategy = TrainState(model, optimizer, task), tf.distribute.get_strategy()
    settings = TrainingSettings(
        1, len(batch["input_ids"]), gradient_checkpointing=gradient_checkpointing
    )
    train_steps = make_train_steps(strategy, state, settings)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: float(train_steps(batches, tf.constant(1)).numpy().losses(task)[0])


def make_jax(config: dict, batch: dict[str, np.ndarray]) -> Callable[[int], float]:
    """Creates a function that runs a number of keras_bert's steps on JAX, without TensorFlow."""
    sys.modules["tensorflow"] = None  # An import of TensorFlow raises an ImportError.
    sys.path.insert(0, str(ROOT))
    import itertools

    import keras

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import PretrainingObjective
    from keras_bert.training.jax_step import JaxDevices, make_train_steps
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay

    devices = JaxDevices(keras.distribution.list_devices()[:1])
    model = BertPretrainer(BertConfig.from_dict(config), dtype="mixed_bfloat16")
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    task = PretrainingObjective()
    train_steps = make_train_steps(
        devices, TrainState(model, optimizer, task), TrainingSettings(1, 16)
    )
    batches = itertools.repeat(devices.place(batch))
    return lambda count: float(train_steps(batches, count).numpy().losses(task)[-1])


def make_kerashub(config: dict, batch: dict[str, np.ndarray], dtype: str, xla: bool) -> Step:
    """Creates a step of KerasHub's BERT backbone and masked-LM head, in one tf.function."""
    import keras
    import keras_hub
    import tensorflow as tf

    if dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=V,
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        dropout=0.1,
        max_sequence_length=512,
    )
    masked_lm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=V,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )
    next_sentence = keras.layers.Dense(2, dtype="float32")
    batch = {name: tf.constant(value) for name, value in batch.items()}
    names = {"token_ids": "input_ids", "padding_mask": "input_mask", "segment_ids": "segment_ids"}

    def loss_of() -> tf.Tensor:
        inputs = {theirs: batch[ours] for theirs, ours in names.items()}
        hidden = backbone(inputs, training=True)
        logits = masked_lm(hidden["sequence_output"], mask_positions=batch["masked_lm_positions"])
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        nll = cross_entropy(batch["masked_lm_ids"], tf.cast(logits, tf.float32))
        weights = batch["masked_lm_weights"]
        next_nll = cross_entropy(
            batch["next_sentence_labels"], next_sentence(hidden["pooled_output"])
        )
        masked_loss = tf.reduce_sum(nll * weights) / (tf.reduce_sum(weights) + 1e-5)
        return masked_loss + tf.reduce_mean(next_nll)

    loss_of()  # Creates the variables.
    layers = (backbone, masked_lm, next_sentence)
    variables = list({id(v): v for layer in layers for v in layer.trainable_variables}.values())
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0)
    optimizer.build(variables)

    @tf.function(jit_compile=xla)
    def train_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], variables)
        return loss

    return lambda: float(train_step())


def make_torch(
    config: dict, batch: dict[str, np.ndarray], dtype: str, compiled: bool = False
) -> Callable[[int], float]:
    """Creates a function that runs a number of steps of transformers' BERT on the GPU, if any.

    bfloat16 is autocast. With `compiled`, torch.compile compiles the loss, and the model gets no
    attention mask, so that its fused attention is used: no row is padded.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if compiled else "highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attention = {"attn_implementation": "sdpa"} if compiled else {}
    model = transformers.BertForPreTraining(transformers.BertConfig(**config, **attention))
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    tensors = {name: torch.from_numpy(value).to(device) for name, value in batch.items()}
    tensors = {n: t if t.is_floating_point() else t.long() for n, t in tensors.items()}
    mask = {} if compiled else {"attention_mask": tensors["input_mask"]}
    rows = torch.arange(len(tensors["input_ids"]), device=device)[:, None]
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_of() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            hidden, pooled = model.bert(
                input_ids=tensors["input_ids"],
                token_type_ids=tensors["segment_ids"],
                return_dict=False,
                **mask,
            )
            masked = hidden[rows, tensors["masked_lm_positions"]]
            logits, next_logits = model.cls(masked, pooled)
        loss = cross_entropy(logits.float().flatten(0, 1), tensors["masked_lm_ids"].flatten())
        return loss + cross_entropy(next_logits.float(), tensors["next_sentence_labels"])

    if compiled:
        loss_of = torch.compile(loss_of)

    def steps(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return float(loss.detach())  # Waits for the device.

    return steps
