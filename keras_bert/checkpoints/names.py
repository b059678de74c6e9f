"""The table of weight names: our variable paths <-> Hugging Face's names.

Ours follow Google's checkpoints. A kernel of ours is [in, out]; Hugging Face's is its transpose.
"""

import re

# Layer by layer, ours and theirs; {} is the block's number.
_LAYERS = (
    ("encoder/embeddings", "bert.embeddings"),
    ("encoder/layer_{}", "bert.encoder.layer.{}"),
    ("encoder/pooler", "bert.pooler"),
    ("masked_lm/dense", "cls.predictions.transform.dense"),
    ("masked_lm/LayerNorm", "cls.predictions.transform.LayerNorm"),
    ("masked_lm", "cls.predictions"),
    ("next_sentence", "cls.seq_relationship"),
    ("classifier", "classifier"),
    ("span", "qa_outputs"),
)

# The last word of a path, ours and theirs.
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

# The masked-LM head's copy of the word embeddings, which some files hold a second time.
TIED_DECODER = "cls.predictions.decoder.weight"

# Other spellings of a name: files of 2018 and 2019 call LayerNorm's variables as Google does, and
# some files hold the vocabulary's bias under the decoder alone.
_OLDER_SPELLINGS = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
)

# A file of a model without heads has no prefix on the encoder's names.
_WITHOUT_PREFIX = re.compile(r"^(embeddings|encoder|pooler)\.")


def hugging_face_name(path: str) -> str:
    """Returns the name that Hugging Face gives to one of our variables.

    Args:
        path: the variable's path, such as `encoder/layer_0/output/dense/kernel`.

    Returns:
        Such as `bert.encoder.layer.0.output.dense.weight`.

    Raises:
        KeyError: no model of ours has such a variable.
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
    """Returns whether Hugging Face keeps a variable as the transpose of ours.

    Args:
        path: the variable's path.

    Returns:
        True for kernels, [in, out] here and [out, in] there.
    """
    return path.endswith("/kernel")


def current_spelling(name: str) -> str:
    """Returns what Hugging Face calls a weight today, whatever the file's age and model.

    Args:
        name: a weight's name as it stands in a file.

    Returns:
        Such as `bert.encoder.layer.0.output.LayerNorm.weight`.
    """
    for pattern, spelling in _OLDER_SPELLINGS:
        name = pattern.sub(spelling, name)
    return "bert." + name if _WITHOUT_PREFIX.match(name) else name
