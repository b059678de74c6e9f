"""Reads and writes the files of sentence-transformers: length, pooling, Dense modules, prompts.

    modules.json                        the type and the folder of each module
    sentence_bert_config.json           max_seq_length, do_lower_case; beside the encoder
    1_Pooling/config.json               the pooling
    2_Dense/config.json, .safetensors   a linear layer with an activation
    config_sentence_transformers.json   prompts, truncate_dim; the activation of a CrossEncoder

Since version 5.4, the length is `model_max_length` of tokenizer_config.json. Before version 2.0,
the encoder was in a folder such as 0_Transformer. Older CrossEncoders have their activation in
config.json and no other files of sentence-transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_bert.checkpoints.weights import WEIGHTS
from keras_bert.errors import InputError
from keras_bert.files import check_schema, parse_json, read_json, value_of, write_json

MODULES, LENGTH = "modules.json", "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"
_POOLING_FOLDER = "1_Pooling"
# The names that `write_sentence_transformer` creates in a model directory.
SENTENCE_TRANSFORMER_FILES = (
    *(MODULES, LENGTH, _PROMPTS, _POOLING_FOLDER),
    *(f"{index}_{kind}" for index in range(2, 10) for kind in ("Dense", "Normalize")),
)

# Supported pooling -> its key in older sentence-transformers files.
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
# Class in torch.nn -> the name of the activation in Keras.
_ACTIVATIONS = {"Identity": "linear", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
_TORCH = {
    keras: f"torch.nn.modules.{'linear' if keras == 'linear' else 'activation'}.{name}"
    for name, keras in _ACTIVATIONS.items()
}

# The key of a CrossEncoder in config.json -> {"activation_fn": class in torch.nn}.
CROSS_ENCODER = "sentence_transformers"
_OLDER_ACTIVATION = "sbert_ce_default_activation_function"  # before version 4.0
# The activation of the score of a pair in Keras -> its class.
_SCORES = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "linear": "torch.nn.modules.linear.Identity",
}


def read_sentence_transformer(model_dir: Path) -> dict[str, Any]:
    """Reads the settings with which sentence-transformers computes the vector of a text.

    Returns:
        max_seq_length: maximum number of tokens in a text; None if no file specifies it.
        pooling: `cls` or `mean`; None without a Pooling module.
        normalize: whether vectors are scaled to length 1.
        dense: the arguments of the Keras layers between the pooling and the normalization.
        prompts: texts by name, of which one is put before a text.
        default_prompt_name: the name of the prompt that is used by default; None for no prompt.
        truncate_dim: the size to which vectors are truncated at last; None for whole vectors.
    """
    modules = read_modules(model_dir)
    kinds = ["Transformer" if kind == "BERT" else kind for kind, _ in modules]
    expected = ["Transformer", "Pooling", *["Dense"] * kinds.count("Dense")]
    if modules and kinds not in (expected, [*expected, "Normalize"]):
        raise InputError(
            f"{model_dir / MODULES}: the modules are {', '.join(kinds)}; expected Transformer, "
            "Pooling, any number of Dense, and optionally Normalize. To use the encoder "
            f"without them, remove {MODULES}"
        )
    file = model_dir / _PROMPTS
    config = read_json(file) if modules and file.is_file() else {}
    schema = {"prompts?": dict, "default_prompt_name?": str, "truncate_dim?": int}
    check_schema(f"{file}:", config, schema)
    prompts, name = config.get("prompts") or {}, config.get("default_prompt_name")
    check_schema(f"{file}: prompts", prompts, {f"{key}?": str for key in prompts})
    if name not in (None, *prompts):
        raise InputError(
            f"{file}: default_prompt_name is {name!r}; expected the name of a prompt, or null"
        )
    size = config.get("truncate_dim")
    if size is not None and size < 1:
        raise InputError(f"{file}: truncate_dim is {size}; expected at least 1")
    return {
        "max_seq_length": saved_max_seq_length(model_dir),
        "pooling": _pooling(modules[1][1] / "config.json") if modules else None,
        "normalize": "Normalize" in kinds,
        "dense": tuple(_dense(folder) for kind, folder in modules if kind == "Dense"),
        "prompts": {key: text or "" for key, text in prompts.items()},
        "default_prompt_name": name,
        "truncate_dim": size,
    }


def write_sentence_transformer(
    folder: Path, settings: Mapping[str, Any], width: int, weights: Mapping[str, np.ndarray]
) -> None:
    """Writes the files into a model directory.

    `settings` are those of `read_sentence_transformer`, with a length and a pooling; `width` is the
    size of the pooled vectors. `weights` are those of the Dense modules by their paths in the
    model.
    """
    kinds = ["", "Pooling", *["Dense"] * len(settings["dense"])]
    kinds += ["Normalize"] * settings["normalize"]
    paths = [f"{index}_{kind}" if kind else "" for index, kind in enumerate(kinds)]
    for path in paths[1:]:
        (folder / path).mkdir()
    modes = {key: name == settings["pooling"] for name, key in _POOLINGS.items()}
    pooling = {"word_embedding_dimension": width, **modes}
    write_json(folder / _POOLING_FOLDER / "config.json", pooling)
    for index, layer in enumerate(settings["dense"]):
        arrays = {"linear.weight": weights[f"encoder/dense_{index}/kernel"].T}
        if layer["use_bias"]:
            arrays["linear.bias"] = weights[f"encoder/dense_{index}/bias"]
        outputs, inputs = arrays["linear.weight"].shape
        content = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": layer["use_bias"],
            "activation_function": _TORCH[layer["activation"]],
        }
        write_json(folder / paths[2 + index] / "config.json", content)
        arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        save_file(arrays, folder / paths[2 + index] / WEIGHTS, metadata={"format": "pt"})
    length = {"max_seq_length": settings["max_seq_length"], "do_lower_case": False}
    write_json(folder / LENGTH, length)
    names = ("prompts", "default_prompt_name", "truncate_dim")
    if any(settings[name] for name in names):
        content = {name: settings[name] for name in names}
        write_json(folder / _PROMPTS, content | {"prompts": dict(settings["prompts"])})
    listed = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind or 'Transformer'}",
        }
        for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(folder / MODULES, listed)


def read_cross_encoder(model_dir: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the activation of the scores of a CrossEncoder, whose config.json is `config`.

    Returns:
        The entry CROSS_ENCODER of config.json, for files of any version; {} for other models.
    """
    file = model_dir / _PROMPTS
    saved = read_json(file) if file.is_file() else {}
    if saved.get("model_type") == "CrossEncoder":
        kinds = [kind for kind, _ in read_modules(model_dir)]
        if kinds != ["Transformer"]:
            raise InputError(
                f"{model_dir / MODULES}: the modules of a CrossEncoder are {', '.join(kinds)}; "
                "expected Transformer"
            )
        if saved.get("default_prompt_name") is not None:
            raise InputError(
                f"{file}: default_prompt_name is {saved['default_prompt_name']!r}; expected null "
                "for a CrossEncoder"
            )
        entry = saved
    elif _OLDER_ACTIVATION in config:
        entry = {"activation_fn": config[_OLDER_ACTIVATION]}
    else:
        entry = config.get(CROSS_ENCODER)
    if not isinstance(entry, Mapping):
        return {}
    return {CROSS_ENCODER: {"activation_fn": entry.get("activation_fn") or _SCORES["sigmoid"]}}


def score_activation(where: Path, config: Mapping[str, Any]) -> str:
    """Returns the activation of a CrossEncoder's score, `sigmoid` (the default) or `linear`."""
    name = config.get(CROSS_ENCODER, {}).get("activation_fn", _SCORES["sigmoid"])
    names = {path.rpartition(".")[2]: activation for activation, path in _SCORES.items()}
    if not str(name).startswith("torch.") or name.rpartition(".")[2] not in names:
        raise InputError(
            f"{where}: activation_fn is {name!r:.60}; expected one of {', '.join(_SCORES.values())}"
        )
    return names[name.rpartition(".")[2]]


def cross_encoder_entry(activation: str) -> dict[str, Any]:
    """Returns the entry of config.json with which sentence-transformers opens a reranker."""
    return {CROSS_ENCODER: {"activation_fn": _SCORES[activation]}}


def transformer_folder(model_dir: Path) -> Path:
    """Returns the folder with the encoder: a model directory, or in it that of the first module."""
    modules = read_modules(model_dir)
    return modules[0][1] if modules else model_dir


def lower_cases(folder: Path) -> bool:
    """Returns whether sentence-transformers lower-cases texts before the tokenizer of a folder."""
    file = folder / LENGTH
    return file.is_file() and value_of(file, read_json(file), "do_lower_case", bool, False)


def read_modules(model_dir: Path) -> list[tuple[str, Path]]:
    """Returns the type and folder of each module in modules.json; [] without the file."""
    file = model_dir / MODULES
    if not file.is_file():
        return []
    content = parse_json(file.read_bytes(), str(file))
    check_schema(f"{file}: the list of modules", content, [{"type": str, "path": str}])
    modules = [(each["type"].rpartition(".")[2], each["path"]) for each in content]
    for _, path in modules:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"{file}: the path {path!r}; expected a folder in that of the model")
    return [(kind, model_dir / path) for kind, path in modules]


def saved_max_seq_length(model_dir: Path, is_cross_encoder: bool = False) -> int | None:
    """Returns the maximum number of tokens of a text or pair; None if no file specifies it."""
    folder = transformer_folder(model_dir)
    files = [folder / name for name in (LENGTH, "tokenizer_config.json", "config.json")]
    config, tokenizer, sizes = (read_json(file) if file.is_file() else {} for file in files)
    length = value_of(files[0], config, "max_seq_length", int, None)
    if length is not None or not (is_cross_encoder or (model_dir / MODULES).is_file()):
        return length
    length, positions = tokenizer.get("model_max_length"), sizes.get("max_position_embeddings")
    lengths = [value for value in (length, positions) if isinstance(value, int)]
    return min(lengths, default=None)


def _pooling(file: Path) -> str:
    """Returns the pooling of a Pooling module, from its config.json."""
    config = read_json(file)
    modes = config.get("pooling_mode")
    if modes is None:
        older = {key: name for name, key in _POOLINGS.items()}
        enabled = [
            key
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value is True
        ]
        modes = [older.get(key, key) for key in enabled] or ["mean"]
    modes = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(
            f"{file}: the pooling is {', '.join(modes)}; expected cls or mean. To use the encoder "
            f"without it, remove {MODULES}"
        )
    if config.get("include_prompt") is False:
        raise InputError(f"{file}: include_prompt is false; expected true")
    return modes[0]


def _dense(folder: Path) -> dict[str, Any]:
    """Returns the arguments of the Keras layer of a Dense module."""
    file = folder / "config.json"
    config: dict[str, Any] = read_json(file)
    name = value_of(file, config, "activation_function", str, "torch.nn.Tanh")
    units = value_of(file, config, "out_features", int, 0)
    fixed = {
        "module_input_name": (None, "sentence_embedding"),
        "module_output_name": (None, "sentence_embedding"),
        "use_residual": (None, False),
    }
    problems = [f"{key} is {config[key]!r}" for key in fixed if config.get(key) not in fixed[key]]
    if not name.startswith("torch.nn.") or name.rpartition(".")[2] not in _ACTIVATIONS:
        problems.append(f"activation_function is {name!r}")
    if units < 1:
        problems.append("out_features is missing")
    if problems:
        raise InputError(
            f"{file}: {', '.join(problems)}; expected a Dense module of sentence vectors, with an "
            f"activation of torch.nn: {', '.join(_ACTIVATIONS)}"
        )
    if not (folder / WEIGHTS).is_file():
        raise InputError(
            f"{folder}: has no {WEIGHTS}; expected the weights of the Dense module. If it has "
            "pytorch_model.bin, a pickle, convert it once with sentence-transformers: "
            "SentenceTransformer(DIR).save_pretrained(NEW_DIR)"
        )
    return {
        "units": units,
        "activation": _ACTIVATIONS[name.rpartition(".")[2]],
        "use_bias": value_of(file, config, "bias", bool, True),
    }
