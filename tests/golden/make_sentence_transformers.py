"""Makes directories of sentence-transformers in the layouts of its versions, with their outputs.

    .peers/bin/python tests/golden/make_sentence_transformers.py INPUTS.json OUT MODEL_DIR
    .peers/bin/python tests/golden/make_sentence_transformers.py INPUTS.json OUT.npz DIR ...

INPUTS.json has `texts`, a list of strings, and `pairs`, a list of lists of two strings. MODEL_DIR
is the directory of an encoder. OUT gets a folder for each of CASES and layouts, one for each of
CROSS_ENCODERS and CROSS_ENCODER_LAYOUTS, and outputs.npz: the vectors of the texts by each
embedder, float32 [B, D], those with the prompt `query` of the case `prompts` as `prompts_query`,
and the scores of the pairs by each CrossEncoder, float32 [n]. The second form only computes these
outputs.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
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


# Name -> layouts, pooling, length, modules after the pooling (by width), and arguments of the
# model. Each layout has each of its parts in one case or more.
CASES = {
    "plain": ("new old oldest", "mean", 12, lambda width: [], {}),
    "cls": ("new old", "cls", 8, lambda width: [Normalize()], {}),
    "dense": ("old", "mean", 12, lambda width: [dense(width, 6)], {}),
    "two_dense": (
        "new oldest",
        "cls",
        12,
        lambda width: [dense(width, 6, "gelu"), dense(6, 5, "linear", False), Normalize()],
        {},
    ),
    "prompts": ("new", "mean", 12, lambda width: [], {"prompts": PROMPTS}),
    "default_prompt": (
        "old",
        "mean",
        12,
        lambda width: [],
        {"prompts": PROMPTS, "default_prompt_name": "query"},
    ),
    "truncated": ("new oldest", "mean", 12, lambda width: [Normalize()], {"truncate_dim": 4}),
    "max": ("new old", "max", 12, lambda width: [], {}),
}
CROSS_ENCODERS = {"sigmoid": None, "linear": torch.nn.Identity()}
CROSS_ENCODER_LAYOUTS = ("new", "old", "oldest")


def main(inputs_file: str, out: str, *directories: str) -> None:
    """Makes the directories, if OUT is to have them, and the outputs."""
    inputs = json.loads(Path(inputs_file).read_text(encoding="utf-8"))
    more = {}
    if not out.endswith(".npz"):
        torch.manual_seed(0)
        (model_dir,), folder = directories, Path(out)
        directories = [*make_embedders(model_dir, folder), *make_cross_encoders(model_dir, folder)]
        prompts = SentenceTransformer(str(folder / "prompts_new"), device="cpu")
        more["prompts_query"] = prompts.encode(inputs["texts"], prompt_name="query")
        out = str(folder / "outputs.npz")
    outputs = {Path(each).name: compute(Path(each), **inputs) for each in directories}
    np.savez(out, **outputs, **more)


def compute(folder: Path, texts: list, pairs: list) -> np.ndarray:
    """Returns the vectors of the texts, or the scores of the pairs by a CrossEncoder."""
    config = json.loads((folder / "config.json").read_text())
    if "BertForSequenceClassification" in config.get("architectures", []):
        return CrossEncoder(str(folder), device="cpu").predict(pairs)
    return SentenceTransformer(str(folder), device="cpu").encode(texts)


def make_embedders(model_dir: str, out: Path) -> list[Path]:
    """Makes the directories of embedders."""
    folders = []
    for name, (layouts, pooling, length, after, arguments) in CASES.items():
        encoder = Transformer(model_dir, max_seq_length=length)
        width = encoder.get_embedding_dimension()
        modules = [encoder, Pooling(width, pooling), *after(width)]
        model = SentenceTransformer(modules=modules, device="cpu", **arguments)
        for layout in layouts.split():
            folders.append(out / f"{name}_{layout}")
            model.save_pretrained(str(folders[-1]), create_model_card=False)
            if layout != "new":
                make_older(folders[-1], pooling, length)
            if layout == "oldest":
                move_encoder(folders[-1])
    return folders


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


def make_cross_encoders(model_dir: str, out: Path) -> list[Path]:
    """Makes the directories of CrossEncoders: of version 5 (`new`), 4 (`old`) and 3."""
    folders = []
    for name, activation in CROSS_ENCODERS.items():
        model = CrossEncoder(
            model_dir, num_labels=1, max_length=24, activation_fn=activation, device="cpu"
        )
        torch.nn.init.normal_(model.model.classifier.weight)
        for layout in CROSS_ENCODER_LAYOUTS:
            folders.append(out / f"{name}_{layout}")
            model.save_pretrained(str(folders[-1]), create_model_card=False)
            if layout != "new":
                make_older_cross_encoder(folders[-1], layout)
    return folders


def make_older_cross_encoder(folder: Path, layout: str) -> None:
    saved = json.loads((folder / "config_sentence_transformers.json").read_text())
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    if layout == "old":
        settings = {"activation_fn": saved["activation_fn"], "version": "4.1.0"}
        older = {"sentence_transformers": settings}
    else:
        older = {"sbert_ce_default_activation_function": saved["activation_fn"]}
    edit(folder / "config.json", lambda config: config | older)


def edit(file: Path, change) -> None:
    """Rewrites a JSON file."""
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
