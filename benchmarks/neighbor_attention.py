"""Measures how much the heads of pre-trained models attend to the neighbors of masked tokens.

    .peers/bin/python benchmarks/neighbor_attention.py MODEL:LENGTH ...

MODEL is a Hugging Face directory of a BERT, such as model/ of a pre-training run, and LENGTH the
number of tokens of its sequences. For each layer, the script prints the head that attends most to
the token before a masked token, and the one that attends most to the token after it: their mean
attention weights over the masked tokens of a held-out book. A head that does not distinguish
positions has a weight of 1/LENGTH. transformers computes the attention.
"""

import argparse
import lzma
from pathlib import Path

import torch
from transformers import BertModel, BertTokenizerFast, logging

BOOK = Path(__file__).parents[2] / "shared/data/corpus/gutenberg-85/cranford.txt.xz"
CHARACTERS = slice(20_000, 120_000)  # Inside the book, after the titles.
SEQUENCES = 64
MASKED = 0.15


def book_sequences(tokenizer: BertTokenizerFast, length: int, count: int) -> torch.Tensor:
    """Returns the first sequences of the book, [CLS] tokens [SEP], int64 [B, S]."""
    with lzma.open(BOOK, "rt", encoding="utf-8") as file:
        text = file.read()[CHARACTERS]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    size = length - 2
    rows = [
        [tokenizer.cls_token_id, *ids[start : start + size], tokenizer.sep_token_id]
        for start in range(0, len(ids) - size, size)
    ]
    return torch.tensor(rows[:count])


def masked_sequences(tokenizer: BertTokenizerFast, length: int) -> tuple:
    """Returns token ids with masks, int64 [B, S], and whether each token is masked."""
    ids = book_sequences(tokenizer, length, SEQUENCES)
    is_masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < MASKED
    is_masked[:, [0, -1]] = False
    return ids.masked_fill(is_masked, tokenizer.mask_token_id), is_masked


def neighbor_attention(model: BertModel, ids: torch.Tensor, is_masked: torch.Tensor) -> list:
    """Returns for each layer the mean weights of the tokens before and after, [N] each."""
    with torch.no_grad():
        layers = model(ids, output_attentions=True).attentions  # [B, N, S, S] each
    inner = is_masked[:, 1:-1].nonzero(as_tuple=True)
    found = []
    for weights in layers:
        before = torch.diagonal(weights, -1, 2, 3)[:, :, :-1]  # [B, N, S - 2]
        after = torch.diagonal(weights, 1, 2, 3)[:, :, 1:]
        found.append([some.transpose(1, 2)[inner].mean(dim=0) for some in (before, after)])
    return found


def main() -> None:
    """Prints one table row per model and layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL:LENGTH")
    logging.set_verbosity_error()  # The weights of the heads are not used.
    logging.disable_progress_bar()
    print("| model | layer | token before | token after | 1 / length |")
    print("| --- | --- | --- | --- | --- |")
    for given in parser.parse_args().models:
        path, _, length = given.rpartition(":")
        tokenizer = BertTokenizerFast.from_pretrained(path)
        model = BertModel.from_pretrained(path, attn_implementation="eager").eval()
        measured = neighbor_attention(model, *masked_sequences(tokenizer, int(length)))
        for layer, (before, after) in enumerate(measured, 1):
            cells = [path, layer, f"{before.max():.2f}", f"{after.max():.2f}"]
            print(f"| {' | '.join(map(str, cells))} | {1 / int(length):.3f} |")


if __name__ == "__main__":
    main()
