"""Converts variable paths of this library to the names of variables in KerasHub's weight files."""

import re

# Layer names of this library -> groups in model.weights.h5 and task.weights.h5. The variables of a
# group are numbered, a kernel or scale before its bias.
BACKBONE = "backbone/layers/"
_BLOCK = {
    "attention/self/query": "_self_attention_layer/query_dense",
    "attention/self/key": "_self_attention_layer/key_dense",
    "attention/self/value": "_self_attention_layer/value_dense",
    "attention/output/dense": "_self_attention_layer/output_dense",
    "attention/output/LayerNorm": "_self_attention_layer_norm",
    "intermediate/dense": "_feedforward_intermediate_dense",
    "output/dense": "_feedforward_output_dense",
    "output/LayerNorm": "_feedforward_layer_norm",
}
_SINGLE_VARIABLES = {
    "encoder/embeddings/word_embeddings": BACKBONE + "reversible_embedding/vars/0",
    "encoder/embeddings/position_embeddings": BACKBONE + "position_embedding/vars/0",
    "encoder/embeddings/token_type_embeddings": BACKBONE + "embedding/vars/0",
    "masked_lm/output_bias": "task/layers/masked_lm_head/vars/0",
}
_LAYERS = {
    "encoder/embeddings/LayerNorm": BACKBONE + "layer_normalization",
    "encoder/pooler/dense": BACKBONE + "dense",
    "masked_lm/dense": "task/layers/masked_lm_head/_intermediate_dense",
    "masked_lm/LayerNorm": "task/layers/masked_lm_head/_intermediate_layer_norm",
    "classifier": "task/layers/dense",
}
_VARIABLE_INDICES = {"kernel": 0, "gamma": 0, "bias": 1, "beta": 1}


def keras_hub_name(path: str, is_token_classifier: bool = False) -> str:
    """Converts a variable path of this library to the file, group and index in KerasHub's files.

    `encoder/layer_0/output/dense/kernel` becomes
    `backbone/layers/transformer_encoder/_feedforward_output_dense/vars/0`. Heads that KerasHub
    does not have, such as a token classifier (with `is_token_classifier`), are stored under
    `task/keras_bert/`, followed by the path.
    """
    if path in _SINGLE_VARIABLES:
        return _SINGLE_VARIABLES[path]
    layer, _, variable = path.rpartition("/")
    block = re.match(r"encoder/layer_(\d+)/(.*)", layer)
    if block:
        number = f"_{block[1]}" * (block[1] != "0")
        group = f"{BACKBONE}transformer_encoder{number}/{_BLOCK[block[2]]}"
    elif layer in _LAYERS and not (is_token_classifier and layer == "classifier"):
        group = _LAYERS[layer]
    else:
        return f"task/keras_bert/{path}"
    return f"{group}/vars/{_VARIABLE_INDICES[variable]}"
