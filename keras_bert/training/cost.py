"""Estimates the parameters, floating-point operations and memory of pre-training.

Symbols: B sequences per micro-batch, S length, P predictions, H hidden size, I intermediate size, L
layers, N heads, V vocabulary. Only matrix products are counted as operations, since everything else
is a few percent of them.
"""

from dataclasses import dataclass

from keras_bert.config import BertConfig


def parameters(config: BertConfig) -> int:
    """Counts the weights of a `BertPretrainer`: embeddings, layers, pooler and both heads."""
    h = config.hidden_size
    masked_lm = (h * h + h) + 2 * h + config.vocab_size  # The weights are tied to the embeddings.
    next_sentence = 2 * h + 2
    return config.num_encoder_weights + masked_lm + next_sentence


def flops(config: BertConfig, length: int, predictions: int) -> int:
    """Counts the operations of the forward and backward pass of one sequence, including padding.

    Recomputation by gradient checkpointing is not counted.
    """
    h, wide = config.hidden_size, config.intermediate_size
    # The products with the weights of each token, then the attention scores and contexts.
    layer = length * (4 * h * h + 2 * h * wide) + 2 * length * length * h
    masked_lm = predictions * (h * h + h * config.vocab_size)
    heads = masked_lm + h * h + 2 * h
    # A multiply-add is two operations. The backward pass computes each product twice, once for each
    # of its gradients, so the total is three times the forward pass.
    return 3 * 2 * (config.num_hidden_layers * layer + heads)


@dataclass(frozen=True)
class Memory:
    """The memory that one device needs in a training step, in bytes.

    Attributes:
        weights: the variables, and their copies in the compute dtype if that is not float32.
        gradients: the gradients of a micro-batch, and their sum if there are several micro-batches.
        optimizer: two moments per weight.
        activations: the tensors of one micro-batch that are kept for the backward pass.
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
        length: S, the number of tokens in a sequence.
        predictions: P, the number of predictions in a sequence.
        sequences: B, the number of sequences in a micro-batch.
        micro_batches: the number of micro-batches in a step.
        compute_bytes: bytes per value of the compute dtype.
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

    The memory of the program itself, about 0.4 GB on a CPU, is not counted.
    """
    weights, h = parameters(config), config.hidden_size
    # For each token, a layer keeps the tensors between its chains, which are fused sequences of
    # element-wise operations (layers/chain.py). 12 H: query, key and value as products and by head,
    # the context by head and merged, two outputs and two sums, of which the second is the input of
    # the next layer. 2 I: before and after the activation. 2 N S: scores and probabilities.
    layer = 12 * h + 2 * config.intermediate_size + 2 * config.num_attention_heads * step.length
    kept_per_layer = h if step.gradient_checkpointing else layer
    # The gradients of one layer at a time are kept, and with checkpointing its recomputed tensors.
    one_layer = 2 * layer if step.gradient_checkpointing else layer
    kept = kept_per_layer * config.num_hidden_layers + one_layer
    # The word embeddings in float32, and the sum of all embeddings.
    embeddings = 4 * h + step.compute_bytes * h
    # The logits in the compute dtype; the logits, probabilities and gradient in float32.
    logits = step.predictions * config.vocab_size * (step.compute_bytes + 3 * 4)
    copies = 0 if step.compute_bytes == 4 else step.compute_bytes
    per_sequence = step.length * (kept * step.compute_bytes + embeddings) + logits
    return Memory(
        weights=weights * (4 + copies),
        gradients=weights * 4 * (2 if step.micro_batches > 1 else 1),
        optimizer=weights * 2 * step.state_bytes,
        activations=step.sequences * per_sequence,
    )
