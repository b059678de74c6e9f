"""Makes the golden outputs of the left-to-right model with transformers.

Run where torch and transformers are installed, after make_model_golden.py:

    .peers/bin/python tests/golden/make_left_to_right_golden.py

The output, next to this script, is `left_to_right.npz`: the results of BertLMHeadModel with
is_decoder for the weights of `model_weights.npz` and the batch of `model_gelu.npz`: hidden states,
logits, its loss for the next tokens, and the gradient of every weight.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertLMHeadModel

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Writes the file."""
    weights = dict(np.load(HERE / "model_weights.npz"))
    settings = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu", "is_decoder": True}
    config = BertConfig(**settings)
    config._attn_implementation = "eager"
    model = BertLMHeadModel(config).eval()
    # torch would hold back the gradient of row 0, as it is the padding's.
    model.bert.embeddings.word_embeddings.padding_idx = None
    tensors = {name: torch.tensor(value) for name, value in weights.items()}
    report = model.load_state_dict(tensors, strict=False)
    assert all("decoder" in name for name in report.missing_keys), report.missing_keys
    assert all("pooler" in n or "seq_relationship" in n for n in report.unexpected_keys)
    data = {name: torch.tensor(value) for name, value in np.load(HERE / "model_gelu.npz").items()}
    ids, mask = data["input_ids"].long(), data["input_mask"].long()
    result = model(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=data["segment_ids"].long(),
        labels=torch.where(mask == 1, ids, -100),
        output_hidden_states=True,
    )
    result.loss.backward()
    outputs = {
        "sequence_output": result.hidden_states[-1],
        "next_token_logits": result.logits,
        "loss": result.loss,
    }
    outputs |= {f"gradient/{name}": value.grad for name, value in model.named_parameters()}
    arrays = {name: value.detach().numpy() for name, value in outputs.items()}
    np.savez_compressed(HERE / "left_to_right.npz", **arrays)


if __name__ == "__main__":
    main()
