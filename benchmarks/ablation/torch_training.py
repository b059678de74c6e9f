"""Pre-trains a model with transformers + torch, for comparison; runs in `.peers`.

    .peers/bin/python benchmarks/ablation/torch_training.py SETTINGS.json

`ablation_torch.py` writes the settings. The last line of the output is the list of the held-out
losses at each checkpoint, as JSON. The batches come from keras_bert's input pipeline, so that both
train on the same ones; model, loss, gradients and updates are torch's or written here.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras_bert.pretraining.batches import (
    RecordSource,
    evaluation_batches,
    training_batches,
)
from keras_bert.pretraining.records import find_records

EVALUATION_BATCH = 32
DECAY, BETAS, EPSILON, MAX_NORM = 0.01, (0.9, 0.999), 1e-6, 1.0


def batches(phase: Mapping, held_out: bool) -> Iterator[dict]:
    """Yields the batches of training, or those of an evaluation: {feature: torch tensor}."""
    folder = phase["held_out" if held_out else "records"]
    source = RecordSource(find_records(folder), phase["vocab_size"])
    if held_out:
        count = -(-source.data.num_examples // EVALUATION_BATCH)
        found = evaluation_batches(source, EVALUATION_BATCH, count)
    else:
        found = training_batches(source, phase["batch"], phase["seed"])
    for batch in found:
        yield {name: torch.from_numpy(np.array(value)) for name, value in batch.items()}


def losses(
    model: transformers.BertForPreTraining, batch: Mapping
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sums of the losses of masked tokens and of next sentences, and their counts."""
    hidden, pooled = model.bert(
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        return_dict=False,
    )
    places = batch["masked_lm_positions"].long()[..., None].expand(-1, -1, hidden.shape[-1])
    tokens, sentences = model.cls(hidden.gather(1, places), pooled)
    token_weights, weights = batch["masked_lm_weights"], batch["example_weights"]
    # In one dimension: a transposed tensor of scores makes the step a third slower.
    labels = batch["masked_lm_ids"].long()
    by_token = cross_entropy(tokens.flatten(0, 1), labels.flatten(), reduction="none")
    by_row = cross_entropy(sentences, batch["next_sentence_labels"].long(), reduction="none")
    sums = torch.stack([(token_weights.flatten() * by_token).sum(), (weights * by_row).sum()])
    return sums, torch.stack([token_weights.sum(), weights.sum()])


def evaluate(model: transformers.BertForPreTraining, phase: Mapping) -> dict[str, float]:
    """Returns the losses on all records of the held-out books."""
    with torch.no_grad():
        found = [losses(model, batch) for batch in batches(phase, held_out=True)]
    masked_lm, next_sentence = (sum(s for s, _ in found) / sum(c for _, c in found)).tolist()
    return {"masked_lm_loss": masked_lm, "next_sentence_loss": next_sentence}


class Adam:
    """AdamW as in Google's BERT, with its schedule: `w -= lr * (m / (sqrt(v) + eps) + decay * w)`.

    torch's own always corrects the bias of the moments.
    """

    def __init__(self, model: torch.nn.Module, settings: Mapping[str, Any]):
        self._settings, self._taken = settings, 0
        self._state = [
            (value, torch.zeros_like(value), torch.zeros_like(value), _is_decayed(name))
            for name, value in model.named_parameters()
        ]

    def step(self) -> None:
        """Updates the weights with their gradients."""
        steps, warmup = self._settings["num_train_steps"], self._settings["num_warmup_steps"]
        rate = self._settings["learning_rate"] * (1 - self._taken / steps)
        if self._taken < warmup:
            rate = self._settings["learning_rate"] * self._taken / warmup
        for value, m, v, decays in self._state:
            gradient = value.grad
            m.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            change = m / (v.sqrt() + EPSILON)
            value.data.sub_(rate * (change + DECAY * value.data if decays else change))
            value.grad = None
        self._taken += 1


def _is_decayed(name: str) -> bool:
    return not name.endswith("bias") and "LayerNorm" not in name


def train(settings: Mapping[str, Any]) -> list[dict[str, float]]:
    """Trains all phases in float32; returns the held-out losses at each checkpoint."""
    model = transformers.BertForPreTraining.from_pretrained(settings["model"], dtype=torch.float32)
    model.eval()  # The study has no dropout.
    optimizer, curve, done = Adam(model, settings), [], 0
    for phase in settings["phases"]:
        stream = batches(phase, held_out=False)
        for step in range(1, phase["steps"] + 1):
            sums, counts = losses(model, next(stream))
            (sums[0] / (counts[0] + 1e-5) + sums[1] / counts[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            if step % settings["every"] == 0 or step == phase["steps"]:
                curve.append({"step": done + step, **evaluate(model, phase)})
                print(f"torch: {curve[-1]}", file=sys.stderr, flush=True)
        done += phase["steps"]
    return curve


if __name__ == "__main__":
    print(json.dumps(train(json.loads(Path(sys.argv[1]).read_text()))))
