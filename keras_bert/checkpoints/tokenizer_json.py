"""Writes `tokenizer.json`, the file format of the `tokenizers` library.

docs/concepts/tokenizer.md lists the texts for which that library computes other token ids.
"""

from collections.abc import Sequence
from typing import Any

from keras_bert.checkpoints.added_tokens import added_token
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.user_tokens import UserToken, number_of_subwords
from keras_bert.text.vocabulary import SPECIAL_TOKENS


def tokenizer_json(vocab: Sequence[str], settings: TokenizerSettings) -> dict[str, Any]:
    """Returns the content of tokenizer.json for the V tokens in the order of their ids."""
    ids = {token: index for index, token in enumerate(vocab)}
    # Added tokens are not subwords, except for those before the end of the vocabulary.
    size = number_of_subwords(settings.user_tokens, vocab)
    special = [UserToken(token, special=True) for token in SPECIAL_TOKENS]
    added = sorted([*special, *settings.user_tokens], key=lambda token: ids[token.content])
    cls, sep = _special("[CLS]", 0), _special("[SEP]", 0)
    single = [cls, _sequence("A", 0), sep]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token.content], **added_token(token)} for token in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.tokenize_chinese_chars,
            "strip_accents": settings.strip_accents,  # None: the same as `lowercase`.
            "lowercase": settings.do_lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, _sequence("B", 1), _special("[SEP]", 1)],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": settings.max_input_chars_per_word,
            "vocab": {token: index for token, index in ids.items() if index < size},
        },
    }


def _special(token: str, segment_id: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": segment_id}}


def _sequence(name: str, segment_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment_id}}
