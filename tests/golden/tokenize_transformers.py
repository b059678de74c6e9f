"""Texts -> token ids of transformers, for the test of saved tokenizers.

    .peers/bin/python tests/golden/tokenize_transformers.py TEXTS.json OUT.json MODEL_DIR ...

TEXTS.json is a list of strings. OUT.json gets a list for each directory, with the ids of each text
without special tokens.
"""

import json
import sys
from pathlib import Path

from transformers import BertTokenizerFast


def main(texts_file: str, out_file: str, *model_dirs: str) -> None:
    """Tokenizes the texts with the tokenizer of each directory."""
    texts = json.loads(Path(texts_file).read_text(encoding="utf-8"))
    ids = []
    for model_dir in model_dirs:
        tokenizer = BertTokenizerFast.from_pretrained(model_dir)
        ids.append(tokenizer(texts, add_special_tokens=False)["input_ids"])
    Path(out_file).write_text(json.dumps(ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
