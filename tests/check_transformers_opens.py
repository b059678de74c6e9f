"""Checks that transformers opens our model directories and computes the same numbers.

    .peers/bin/python tests/check_transformers_opens.py MODEL_DIR EXAMPLES.npz ...

Each pair of arguments is a directory that `save_model_directory` wrote from a BertPretrainer, and
a batch with our outputs: the encoder's inputs, masked_lm_positions, sequence_output, pooled_output,
masked_lm_logits and next_sentence_logits. If the directory has a vocabulary, the batch also has
`text` and `token_ids`: sentences, and the ids of [CLS] sentence [SEP] for each, joined by spaces.
Prints one line per pair with the largest difference. Exits with code 1 if a difference is over
1e-5 or anything is missing.
"""

import sys

import numpy as np
import torch
from transformers import AutoTokenizer, BertForPreTraining


def differs(model_dir: str, examples_file: str) -> bool:
    """Compares the outputs, prints the result, and returns whether they differ."""
    examples = np.load(examples_file)
    model, report = BertForPreTraining.from_pretrained(model_dir, output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    inputs = {
        "input_ids": torch.tensor(examples["input_ids"]).long(),
        "attention_mask": torch.tensor(examples["input_mask"]).long(),
        "token_type_ids": torch.tensor(examples["segment_ids"]).long(),
    }
    with torch.no_grad():
        encoded = model.eval().bert(**inputs)
        scores, next_sentence = model.cls(encoded.last_hidden_state, encoded.pooler_output)
    rows = torch.arange(len(scores))[:, None]
    theirs = {
        "sequence_output": encoded.last_hidden_state,
        "pooled_output": encoded.pooler_output,
        "masked_lm_logits": scores[rows, torch.tensor(examples["masked_lm_positions"]).long()],
        "next_sentence_logits": next_sentence,
    }
    worst = max(np.abs(value.numpy() - examples[key]).max() for key, value in theirs.items())
    if "text" in examples:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        for text, token_ids in zip(examples["text"], examples["token_ids"], strict=True):
            found = " ".join(map(str, tokenizer(str(text))["input_ids"]))
            if found != token_ids:
                problems[f"token ids of {text!r}"] = f"{found}, expected {token_ids}"
    print(f"largest difference {worst:.2e}, problems: {problems or 'none'}")
    return worst > 1e-5 or bool(problems)


if __name__ == "__main__":
    pairs = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    sys.exit(sum(differs(*pair) for pair in pairs))
