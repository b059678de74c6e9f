"""The cost of pre-training: parameters, floating-point operations and memory.

B sequences a micro-batch, S length, P predictions, H hidden size, I intermediate size, L layers,
N heads, V vocabulary. A multiplication with its addition counts as two operations; only matrix
products count, as all else is some percent of them.
"""

from dataclasses import dataclass

from keras_bert.config import BertConfig


def parameters(config: BertConfig) -> int:
    """Counts the weights of a `BertPretrainer`: tables, layers, pooler and both heads.

    Args:
        config: the sizes.

    Returns:
        Their number.
    """
    h, wide = config.hidden_size, config.intermediate_size
    norm = 2 * h
    tables = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * h
    layer = 4 * (h * h + h) + (h * wide + wide) + (wide * h + h) + 2 * norm
    pooler = h * h + h
    masked_lm = (h * h + h) + norm + config.vocab_size  # The table is that of the embeddings.
    next_sentence = 2 * h + 2
    encoder = tables + norm + config.num_hidden_layers * layer + pooler
    return encoder + masked_lm + next_sentence


def flops(config: BertConfig, length: int, predictions: int) -> int:
    """Counts the operations of a sequence's forward and backward pass.

    A token's products with the weights of a layer are 2 (4 H² + 2 H I), those of attention (scores
    and contexts) 2 (2 S H); a prediction's are 2 (H² + H V); the pooler's are 2 H². The backward
    pass takes each product twice, for its two gradients, so all is three times the forward pass.
    What gradient checkpointing computes again is not counted.

    Args:
        config: the sizes.
        length: S, padding counted.
        predictions: P, padding counted.

    Returns:
        Floating-point operations a sequence.
    """
    h, wide = config.hidden_size, config.intermediate_size
    layer = length * (4 * h * h + 2 * h * wide) + 2 * length * length * h
    masked_lm = predictions * (h * h + h * config.vocab_size)
    heads = masked_lm + h * h + 2 * h
    return 3 * 2 * (config.num_hidden_layers * layer + heads)


@dataclass(frozen=True)
class Memory:
    """Bytes that one device needs in a training step.

    Attributes:
        weights: the variables, and their copies in the compute type where that is another.
        gradients: of the micro-batch, and their sum where a step has several.
        optimizer: two moments a weight.
        activations: what the backward pass needs of the forward pass of one micro-batch.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class StepShape:
    """The shape of a training step on one device.

    Attributes:
        length: S.
        predictions: P.
        sequences: B, the sequences of one micro-batch.
        micro_batches: micro-batches of a step.
        compute_bytes: bytes a value of the compute type: 4, or 2 for bfloat16 and float16.
        state_bytes: bytes a value of the optimizer's state.
        gradient_checkpointing: whether a layer keeps only its input.
    """

    length: int
    predictions: int
    sequences: int
    micro_batches: int = 1
    compute_bytes: int = 4
    state_bytes: int = 4
    gradient_checkpointing: bool = False


def memory(config: BertConfig, step: StepShape) -> Memory:
    """Estimates the memory of a training step on one device.

    A layer keeps what lies between its chains (layers/chain.py), which compute the rest again: a
    token's 12 H (input; query, key and value as products and by head; context by head and merged;
    two outputs, two sums) + 2 I (before and after the activation) + 2 N S (scores, probabilities)
    values of the compute type; the gradients of one layer pass beside them. The masked-LM head
    keeps a prediction's logits in the compute type, and these, their probabilities and their
    gradient in float32. With gradient checkpointing a layer keeps its input, and one layer at a
    time the rest. What the program takes besides, some 0.4 GB on a CPU, is not counted.

    Args:
        config: the sizes of the model.
        step: the shape and the types of the step.

    Returns:
        The bytes of each part.
    """
    weights, h = parameters(config), config.hidden_size
    layer = 12 * h + 2 * config.intermediate_size + 2 * config.num_attention_heads * step.length
    of_each = h if step.gradient_checkpointing else layer
    at_once = 2 * layer if step.gradient_checkpointing else layer  # Recomputed, and its gradients.
    kept = of_each * config.num_hidden_layers + at_once
    # The words in float32, and the sum of all embeddings.
    embeddings = 4 * h + step.compute_bytes * h
    logits = step.predictions * config.vocab_size * (step.compute_bytes + 3 * 4)
    copies = 0 if step.compute_bytes == 4 else step.compute_bytes
    a_sequence = step.length * (kept * step.compute_bytes + embeddings) + logits
    return Memory(
        weights=weights * (4 + copies),
        gradients=weights * 4 * (2 if step.micro_batches > 1 else 1),
        optimizer=weights * 2 * step.state_bytes,
        activations=step.sequences * a_sequence,
    )
