"""Makes directories of sentence-transformers in the layouts of its versions, with their vectors.

    .peers/bin/python tests/golden/make_sentence_transformers.py MODEL_DIR TEXTS.json OUT

MODEL_DIR is the directory of an encoder, TEXTS.json a list of strings. OUT gets a folder for each
of CASES, and vectors.npz with the vectors of the texts by each of them, float32 [B, D], and those
with the prompt `query` of the case `prompts`, as `prompts_query`.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)

ACTIVATIONS = {"tanh": torch.nn.Tanh, "linear": torch.nn.Identity, "gelu": torch.nn.GELU}
PROMPTS = {"query": "a good ", "document": ""}


def dense(before: int, after: int, activation: str = "tanh", bias: bool = True) -> Dense:
    """Makes a Dense module."""
    return Dense(before, after, bias, ACTIVATIONS[activation]())


# Name -> pooling, length, modules after the pooling (by width), and arguments of the model.
CASES = {
    "plain": ("mean", 12, lambda width: [], {}),
    "cls": ("cls", 8, lambda width: [Normalize()], {}),
    "dense": ("mean", 12, lambda width: [dense(width, 6)], {}),
    "two_dense": (
        "cls",
        12,
        lambda width: [dense(width, 6, "gelu"), dense(6, 5, "linear", False), Normalize()],
        {},
    ),
    "prompts": ("mean", 12, lambda width: [], {"prompts": PROMPTS}),
    "default_prompt": (
        "mean",
        12,
        lambda width: [],
        {"prompts": PROMPTS, "default_prompt_name": "query"},
    ),
    "truncated": ("mean", 12, lambda width: [Normalize()], {"truncate_dim": 4}),
    "max": ("max", 12, lambda width: [], {}),
}
LAYOUTS = ("new", "old", "oldest")


def main(model_dir: str, texts_file: str, out: str) -> None:
    """Makes the directories and the vectors."""
    texts = json.loads(Path(texts_file).read_text(encoding="utf-8"))
    vectors = {}
    torch.manual_seed(0)
    for name, (pooling, length, after, arguments) in CASES.items():
        encoder = Transformer(model_dir, max_seq_length=length)
        width = encoder.get_embedding_dimension()
        modules = [encoder, Pooling(width, pooling), *after(width)]
        model = SentenceTransformer(modules=modules, device="cpu", **arguments)
        for layout in LAYOUTS:
            folder = Path(out) / f"{name}_{layout}"
            model.save_pretrained(str(folder), create_model_card=False)
            if layout != "new":
                make_older(folder, pooling, length)
            if layout == "oldest":
                move_encoder(folder)
            loaded = SentenceTransformer(str(folder), device="cpu")
            vectors[folder.name] = loaded.encode(texts)
    vectors["prompts_query"] = loaded_prompts(Path(out) / "prompts_new", texts)
    np.savez(Path(out) / "vectors.npz", **vectors)


def loaded_prompts(folder: Path, texts: list[str]) -> np.ndarray:
    """Returns the vectors of texts with the prompt `query`."""
    return SentenceTransformer(str(folder), device="cpu").encode(texts, prompt_name="query")


def make_older(folder: Path, pooling: str, length: int) -> None:
    """Writes the files of a directory as versions 2 to 4 do."""
    edit(
        folder / "modules.json",
        lambda modules: [
            {**m, "type": "sentence_transformers.models." + m["type"].rpartition(".")[2]}
            for m in modules
        ],
    )
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    edit(folder / "tokenizer_config.json", lambda config: {**config, "model_max_length": 512})
    name = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    modes = {f"pooling_mode_{key}": mode == pooling for mode, key in name.items()}
    edit(
        folder / "1_Pooling" / "config.json",
        lambda config: {"word_embedding_dimension": config["embedding_dimension"], **modes},
    )


def move_encoder(folder: Path) -> None:
    """Moves the encoder to a folder of its own, as in versions before 2.0."""
    (folder / "0_Transformer").mkdir()
    for file in [*folder.iterdir()]:
        if file.is_file() and file.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            shutil.move(file, folder / "0_Transformer" / file.name)
    edit(
        folder / "modules.json",
        lambda modules: [{**m, "path": m["path"] or "0_Transformer"} for m in modules],
    )
    (folder / "config.json").write_text(json.dumps({"__version__": "0.3.5"}))


def edit(file: Path, change) -> None:
    """Rewrites a JSON file."""
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
