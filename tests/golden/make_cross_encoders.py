"""Makes directories of CrossEncoders of several versions, and scores pairs with them.

    .peers/bin/python tests/golden/make_cross_encoders.py MODEL_DIR PAIRS.json OUT
    .peers/bin/python tests/golden/make_cross_encoders.py PAIRS.json OUT.npz CROSS_ENCODER ...

MODEL_DIR is the directory of an encoder, PAIRS.json a list of lists of two strings. OUT gets a
folder for each of CASES and layouts, and scores.npz with the scores of the pairs by each of them,
float32 [n]. The second form only scores the pairs.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder

CASES = {"sigmoid": None, "linear": torch.nn.Identity()}
LAYOUTS = ("new", "old", "oldest")
LENGTH = 24


def main(*arguments: str) -> None:
    """Makes the directories, if there is one of an encoder, and the scores."""
    if arguments[0].endswith(".json"):
        score(*arguments)
        return
    model_dir, pairs, out = arguments
    torch.manual_seed(0)
    folders = []
    for name, activation in CASES.items():
        model = CrossEncoder(
            model_dir, num_labels=1, max_length=LENGTH, activation_fn=activation, device="cpu"
        )
        torch.nn.init.normal_(model.model.classifier.weight)
        for layout in LAYOUTS:
            folder = Path(out) / f"{name}_{layout}"
            model.save_pretrained(str(folder), create_model_card=False)
            if layout != "new":
                make_older(folder, layout)
            folders.append(str(folder))
    score(pairs, str(Path(out) / "scores.npz"), *folders)


def score(pairs_file: str, out: str, *folders: str) -> None:
    """Writes the scores of the pairs by each directory."""
    pairs = json.loads(Path(pairs_file).read_text())
    scores = {Path(each).name: CrossEncoder(each, device="cpu").predict(pairs) for each in folders}
    np.savez(out, **scores)


def make_older(folder: Path, layout: str) -> None:
    """Changes the files of a directory to those of version 4 (`old`) or 3."""
    saved = json.loads((folder / "config_sentence_transformers.json").read_text())
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    activation = saved["activation_fn"]
    if layout == "old":
        config["sentence_transformers"] = {"activation_fn": activation, "version": "4.1.0"}
    else:
        config["sbert_ce_default_activation_function"] = activation
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(*sys.argv[1:])
