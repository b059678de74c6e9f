"""Creates the pre-training step of each contender of training_step.py.

A step does a forward pass, a backward pass and an update on one batch, and returns the loss. All
contenders have the same sizes, losses and optimizer settings.
"""

import sys
from collections.abc import Callable

import numpy as np
from workers import ROOT

B, S, P, V = 8, 128, 20, 30522  # batch, length, predictions, vocabulary
HIDDEN, LAYERS, HEADS, WIDE = 768, 12, 12, 3072

CONTENDERS = {
    "ours_float32": "ours",
    "ours_bfloat16": "ours",
    "kerashub_float32_xla": "KerasHub",
    "kerashub_bfloat16_xla": "KerasHub",
    "kerashub_float32": "KerasHub",
    "kerashub_bfloat16": "KerasHub",
    "torch_float32": "transformers + torch",
    "torch_bfloat16": "transformers + torch, autocast",
}

Step = Callable[[], float]


def example_batch() -> dict[str, np.ndarray]:
    """Creates a batch of random tokens without padding: {name in pre-training records: array}."""
    random = np.random.default_rng(0)
    positions = np.stack([random.choice(np.arange(1, S - 1), P, replace=False) for _ in range(B)])
    ints = {
        "input_ids": random.integers(1000, V, (B, S)),
        "input_mask": np.ones((B, S)),
        "segment_ids": np.repeat([[0] * (S // 2) + [1] * (S // 2)], B, axis=0),
        "masked_lm_positions": np.sort(positions, axis=1),
        "masked_lm_ids": random.integers(1000, V, (B, P)),
        "next_sentence_labels": random.integers(0, 2, (B,)),
        "dropout_seed": random.integers(0, 2**31 - 1, (B,)),
    }
    floats = {"masked_lm_weights": np.ones((B, P)), "example_weights": np.ones((B,))}
    return {k: v.astype("int32") for k, v in ints.items()} | {
        k: v.astype("float32") for k, v in floats.items()
    }


def make_ours(dtype: str) -> Step:
    """Creates a step of keras_bert with its model, optimizer, objective and training step."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps

    config = BertConfig.from_json("base")
    model = BertPretrainer(config, dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype)
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    state, strategy = TrainState(model, optimizer, task), tf.distribute.get_strategy()
    train_steps = make_train_steps(strategy, state, TrainingSettings(1, B))
    batches = iter(tf.data.Dataset.from_tensors(example_batch()).repeat())

    def step() -> float:
        return float(train_steps(batches, tf.constant(1)).numpy().losses(task)[0])

    return step


def make_kerashub(dtype: str, xla: bool) -> Step:
    """Creates a step of KerasHub's BERT backbone and masked-LM head, in one tf.function."""
    import keras
    import keras_hub
    import tensorflow as tf

    if dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=V,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=HIDDEN,
        intermediate_dim=WIDE,
        dropout=0.1,
        max_sequence_length=512,
    )
    masked_lm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=V,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )
    next_sentence = keras.layers.Dense(2, dtype="float32")
    batch = {name: tf.constant(value) for name, value in example_batch().items()}
    names = {
        "token_ids": "input_ids",
        "padding_mask": "input_mask",
        "segment_ids": "segment_ids",
    }

    def loss_of() -> tf.Tensor:
        inputs = {theirs: batch[ours] for theirs, ours in names.items()}
        hidden = backbone(inputs, training=True)
        logits = masked_lm(hidden["sequence_output"], mask_positions=batch["masked_lm_positions"])
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["masked_lm_ids"], tf.cast(logits, tf.float32)
        )
        weights = batch["masked_lm_weights"]
        next_nll = tf.nn.sparse_softmax_cross_entropy_with_logits(
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


def make_torch(dtype: str) -> Step:
    """Creates a step of transformers' BERT, with logits at the masked positions only."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=V)  # The defaults are BERT-base, dropout 0.1.
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = {name: torch.from_numpy(value) for name, value in example_batch().items()}
    batch |= {name: value.long() for name, value in batch.items() if "weights" not in name}
    rows = torch.arange(B)[:, None]

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            hidden, pooled = model.bert(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
                return_dict=False,
            )
            masked = hidden[rows, batch["masked_lm_positions"]]
            logits, next_logits = model.cls(masked, pooled)
        cross_entropy = torch.nn.functional.cross_entropy
        labels = batch["masked_lm_ids"].flatten()
        loss = cross_entropy(logits.float().flatten(0, 1), labels)
        loss = loss + cross_entropy(next_logits.float(), batch["next_sentence_labels"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return step


def make_step(contender: str) -> Step:
    """Creates the function that runs one step of a contender and returns its loss."""
    library, dtype, *rest = contender.split("_")
    if library == "ours":
        return make_ours(dtype)
    if library == "kerashub":
        return make_kerashub(dtype, rest == ["xla"])
    return make_torch(dtype)
