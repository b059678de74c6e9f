"""Estimates the cost of pre-training: parameters, floating-point operations and memory.

Symbols: B sequences per micro-batch, S length, P predictions, H hidden size, I intermediate size,
L layers, N heads, V vocabulary. A multiply-add counts as two operations. Only matrix products are
counted, since everything else is a few percent of them.
"""

from dataclasses import dataclass

from keras_bert.config import BertConfig


def parameters(config: BertConfig) -> int:
    """Counts the weights of a `BertPretrainer`: embeddings, layers, pooler and both heads."""
    h, wide = config.hidden_size, config.intermediate_size
    norm = 2 * h
    tables = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * h
    layer = 4 * (h * h + h) + (h * wide + wide) + (wide * h + h) + 2 * norm
    pooler = h * h + h
    masked_lm = (h * h + h) + norm + config.vocab_size  # The weights are tied to the embeddings.
    next_sentence = 2 * h + 2
    encoder = tables + norm + config.num_hidden_layers * layer + pooler
    return encoder + masked_lm + next_sentence


def flops(config: BertConfig, length: int, predictions: int) -> int:
    """Counts the operations of the forward and backward pass of one sequence, including padding.

    The forward pass takes 2 (4 H² + 2 H I) operations per layer and token for the weights, plus
    2 (2 S H) for attention (scores and contexts), 2 (H² + H V) per prediction, and 2 H² for the
    pooler. The backward pass computes each product twice, once for each of its gradients, so the
    total is three times the forward pass. Recomputation by gradient checkpointing is not counted.
    """
    h, wide = config.hidden_size, config.intermediate_size
    layer = length * (4 * h * h + 2 * h * wide) + 2 * length * length * h
    masked_lm = predictions * (h * h + h * config.vocab_size)
    heads = masked_lm + h * h + 2 * h
    return 3 * 2 * (config.num_hidden_layers * layer + heads)


@dataclass(frozen=True)
class Memory:
    """The memory that one device needs in a training step, in bytes.

    Attributes:
        weights: the variables, and their copies in the compute dtype if that is not float32.
        gradients: the gradients of a micro-batch, and their sum if a step has several
            micro-batches.
        optimizer: two moments per weight.
        activations: the activations of one micro-batch that are kept for the backward pass.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class StepShape:
    """The shape of a training step on one device.

    Attributes:
        length: S.
        predictions: P.
        sequences: B, the number of sequences in a micro-batch.
        micro_batches: micro-batches per step.
        compute_bytes: bytes per value of the compute dtype: 4, or 2 for bfloat16 and float16.
        state_bytes: bytes per value of the optimizer state.
        gradient_checkpointing: whether each layer keeps only its input.
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

    A layer keeps the tensors between its chains (layers/chain.py), and recomputes those within a
    chain. Per token these are 12 H (input; query, key and value as products and by head; context by
    head and merged; two outputs, two sums) + 2 I (before and after the activation) + 2 N S (scores,
    probabilities) values of the compute dtype. The gradients of one layer are held at the same
    time. The masked-LM head keeps for each prediction the logits in the compute dtype, and the
    logits, their probabilities and their gradient in float32. With gradient checkpointing every
    layer keeps only its input, and one layer at a time keeps all of these tensors. The memory of
    the program itself, about 0.4 GB on a CPU, is not counted.
    """
    weights, h = parameters(config), config.hidden_size
    layer = 12 * h + 2 * config.intermediate_size + 2 * config.num_attention_heads * step.length
    kept_per_layer = h if step.gradient_checkpointing else layer
    # One layer at a time is recomputed, and its gradients are held.
    one_layer = 2 * layer if step.gradient_checkpointing else layer
    kept = kept_per_layer * config.num_hidden_layers + one_layer
    # The word embeddings in float32, and the sum of all embeddings.
    embeddings = 4 * h + step.compute_bytes * h
    logits = step.predictions * config.vocab_size * (step.compute_bytes + 3 * 4)
    copies = 0 if step.compute_bytes == 4 else step.compute_bytes
    per_sequence = step.length * (kept * step.compute_bytes + embeddings) + logits
    return Memory(
        weights=weights * (4 + copies),
        gradients=weights * 4 * (2 if step.micro_batches > 1 else 1),
        optimizer=weights * 2 * step.state_bytes,
        activations=step.sequences * per_sequence,
    )
