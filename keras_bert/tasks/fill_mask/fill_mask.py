"""Filling masks: texts with [MASK] in; the likeliest pieces of each mask out."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.text.padding import pad_segments
from keras_bert.text.tokenizer import BertTokenizer

Filling = tuple[str, float]


def fill_masks(
    model: keras.Model,
    tokenizer: BertTokenizer,
    texts: Sequence[str],
    max_seq_length: int,
    top_k: int = 5,
) -> list[list[list[Filling]]]:
    """Predicts the pieces behind the masks of some texts.

    Args:
        model: a `BertPretrainer`.
        tokenizer: a tokenizer with `keep_special_tokens`, of the model's vocabulary.
        texts: each with one or more "[MASK]".
        max_seq_length: S that texts are padded to, in pieces.
        top_k: fillings a mask.

    Returns:
        A list a text, of a list a mask, of `top_k` (piece, probability), likeliest first.

    Raises:
        InputError: a text has no [MASK] within `max_seq_length`, or the model is left to right.
    """
    if model.config.is_decoder:
        raise InputError(
            "a left-to-right model (is_decoder) fills no masks; expected one that was trained on "
            "masked pieces"
        )
    features = pad_segments(
        tokenizer.tokenize(list(texts)),
        max_seq_length=max_seq_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    ids = np.asarray(features["input_ids"])
    masks = [np.flatnonzero(row == tokenizer.mask_token_id) for row in ids]
    for text, found in zip(texts, masks, strict=True):
        if not found.size:
            raise InputError(
                f"no [MASK] within the first {max_seq_length} pieces of the text {text[:80]!r}"
            )
    positions = np.zeros([len(masks), max(map(len, masks))], np.int32)
    for row, found in zip(positions, masks, strict=True):
        row[: len(found)] = found
    logits = model({**features, "masked_lm_positions": positions}, training=False)
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits["masked_lm_logits"]))
    return [
        [_top(probabilities[b, p], tokenizer.vocab, top_k) for p in range(len(found))]
        for b, found in enumerate(masks)
    ]


def _top(probabilities: np.ndarray, vocab: Sequence[str], top_k: int) -> list[Filling]:
    best = np.argsort(-probabilities, kind="stable")[:top_k]
    return [(vocab[i], float(probabilities[i])) for i in best]
