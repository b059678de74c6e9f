"""Adds tokens to a tokenizer of transformers and saves it, for the test of added tokens.

    .peers/bin/python tests/golden/add_tokens_transformers.py DIR TOKENS.json TEXTS.json OUT OURS

TOKENS.json is a list of the arguments of AddedToken, or strings. The tokenizer of DIR is
saved in place. OUT gets the ids and the offsets of each text without special tokens, as JSON, and
the ids by the tokenizer of the directory OURS.
"""

import json
import sys
from pathlib import Path

from transformers import AddedToken, BertTokenizerFast


def main(model_dir: str, tokens_file: str, texts_file: str, out_file: str, ours: str) -> None:
    """Adds the tokens, saves the tokenizer and tokenizes the texts."""
    tokens, texts = (
        json.loads(Path(file).read_text(encoding="utf-8")) for file in (tokens_file, texts_file)
    )
    tokenizer = BertTokenizerFast.from_pretrained(model_dir)
    for token in tokens:
        if isinstance(token, str):
            tokenizer.add_tokens([token])
        elif token.get("special"):
            tokenizer.add_tokens([AddedToken(**token)], special_tokens=True)
        else:
            tokenizer.add_tokens([AddedToken(**token)])
    tokenizer.save_pretrained(model_dir)
    tokenizer = BertTokenizerFast.from_pretrained(model_dir)
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    result = {"ids": encoded["input_ids"], "offsets": encoded["offset_mapping"]}
    tokenizer = BertTokenizerFast.from_pretrained(ours)
    result["ours"] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    Path(out_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
