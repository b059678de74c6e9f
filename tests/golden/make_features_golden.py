"""Makes the golden hidden states of every layer with transformers, from text.

Run where torch and transformers are installed, after make_model_golden.py, whose weights it takes:

    .peers/bin/python tests/golden/make_features_golden.py

The output, next to this script, is `features.npz`: the texts, their tokens, and the hidden states
of each layer of the random tiny model, starting with the embeddings.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from make_model_golden import CONFIG, HERE, pretraining_model
from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["Wa wb, wcwd!", "wa wb ||| wc unknown we", "", "wj wi wh wg wf we wd wc wb wa"]


def main() -> None:
    """Writes the file."""
    words = [mark + "w" + letter for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
    vocab = [*SPECIAL, *words, ",", "!", ".", "?"]
    assert len(vocab) == CONFIG["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(vocab) + "\n")
        tokenizer = BertTokenizer(str(Path(folder) / "vocab.txt"))
    model = pretraining_model("gelu").bert
    golden = {"vocab": np.array(vocab), "texts": np.array(TEXTS)}
    for index, text in enumerate(TEXTS):
        features = tokenizer(*text.split(" ||| "), return_tensors="pt")
        with torch.no_grad():
            states = model(**features, output_hidden_states=True).hidden_states
        golden[f"input_ids_{index}"] = features["input_ids"][0].numpy().astype(np.int32)
        golden[f"hidden_states_{index}"] = torch.cat(states).numpy()  # [L + 1, t, H]
    np.savez_compressed(HERE / "features.npz", **golden)


if __name__ == "__main__":
    main()
