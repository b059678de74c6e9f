"""Converts variable paths of this library to Hugging Face's weight names.

The paths follow Google's checkpoints. Kernels are [in, out]; Hugging Face stores the transpose.
"""

import re

# Layer names here and in Hugging Face; {} is the number of the block.
_LAYERS = (
    ("encoder/embeddings", "bert.embeddings"),
    ("encoder/layer_{}", "bert.encoder.layer.{}"),
    ("encoder/pooler", "bert.pooler"),
    ("encoder/dense_{}", "dense.{}"),  # of sentence-transformers, in files of their own
    ("masked_lm/dense", "cls.predictions.transform.dense"),
    ("masked_lm/LayerNorm", "cls.predictions.transform.LayerNorm"),
    ("masked_lm", "cls.predictions"),
    ("next_sentence", "cls.seq_relationship"),
    ("classifier", "classifier"),
    ("span", "qa_outputs"),
)

# The last part of a path, here and in Hugging Face.
_VARIABLES = {
    "word_embeddings": "word_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "gamma": "weight",
    "beta": "bias",
    "kernel": "weight",
    "bias": "bias",
    "output_bias": "bias",
}

# The masked-LM head's copy of the word embeddings, which some files contain.
TIED_DECODER = "cls.predictions.decoder.weight"

# Older names: files of 2018 and 2019 name the variables of LayerNorm as Google does, and some files
# contain the masked-LM head's output bias only under the decoder's name.
_OLDER_NAMES = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
)

# In a file of a model without heads, the encoder's names have no prefix.
_WITHOUT_PREFIX = re.compile(r"^(embeddings|encoder|pooler)\.")


def hugging_face_name(path: str) -> str:
    """Converts a variable path of this library to Hugging Face's name.

    `encoder/layer_0/output/dense/kernel` becomes `bert.encoder.layer.0.output.dense.weight`. Raises
    a KeyError if no model of this library has such a variable.
    """
    layer, _, variable = path.rpartition("/")
    for ours, theirs in _LAYERS:
        pattern = re.escape(ours).replace(r"\{\}", r"(\d+)") + r"(?=/|$)"
        match = re.match(pattern, layer)
        if match:
            parts = [theirs.format(*match.groups()), *layer[match.end() :].split("/")[1:]]
            return ".".join([*parts, _VARIABLES[variable]])
    raise KeyError(path)


def is_transposed(path: str) -> bool:
    """Returns whether Hugging Face stores the transpose of a variable; true for kernels."""
    return path.endswith("/kernel")


def current_name(name: str) -> str:
    """Converts an older weight name, or one without the prefix "bert.", to the current name."""
    for pattern, current in _OLDER_NAMES:
        name = pattern.sub(current, name)
    return "bert." + name if _WITHOUT_PREFIX.match(name) else name
