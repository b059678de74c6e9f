"""Measures how much pre-trained models use another occurrence of a masked token.

    .peers/bin/python benchmarks/copying.py MODEL ...

MODEL is a Hugging Face directory of a BERT, such as model/ of a pre-training run. In sequences of
128 tokens of a held-out book, one rare token that occurs twice is masked. The script prints the
mean loss (nats) of the model at this token, and the loss after the other occurrences were replaced
with random tokens of the book. The difference is what the model gains by copying: 0 for a model
that only uses other words. transformers computes the losses.
"""

import argparse
from collections.abc import Iterator

import torch
from neighbor_attention import book_sequences
from transformers import BertForMaskedLM, BertTokenizerFast, logging

LENGTH = 128
SEQUENCES = 128
RARE = 200  # A token is rare if it occurs less often than this in the sequences.
PER_SEQUENCE = 3
BATCH = 32


def examples(
    ids: torch.Tensor, mask_id: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
    """Yields masked sequences, int64 [S], with and without copies, the position and the token."""
    counts = torch.bincount(ids.flatten())
    generator = torch.Generator().manual_seed(0)
    for row in ids:
        here = torch.bincount(row, minlength=len(counts))
        repeated = [
            place
            for place in range(1, LENGTH - 1)
            if here[row[place]] > 1 and counts[row[place]] < RARE
        ]
        for place in repeated[:PER_SEQUENCE]:
            with_copies = row.clone()
            with_copies[place] = mask_id
            is_copy = with_copies == row[place]
            drawn = torch.randint(ids.numel(), (int(is_copy.sum()),), generator=generator)
            without = with_copies.clone()
            without[is_copy] = ids.flatten()[drawn]
            yield with_copies, without, place, int(row[place])


def losses(
    model: BertForMaskedLM, ids: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Returns the loss of the token at one place of each sequence, float32 [B], in nats."""
    found = []
    with torch.no_grad():
        for some, place, token in zip(
            ids.split(BATCH), places.split(BATCH), tokens.split(BATCH), strict=True
        ):
            logits = model(some).logits[torch.arange(len(some)), place]
            found.append(torch.nn.functional.cross_entropy(logits, token, reduction="none"))
    return torch.cat(found)


def main() -> None:
    """Prints one table row per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print("| model | loss with copies | without | difference |")
    print("| --- | --- | --- | --- |")
    for path in parser.parse_args().models:
        tokenizer = BertTokenizerFast.from_pretrained(path)
        model = BertForMaskedLM.from_pretrained(path).eval()
        ids = book_sequences(tokenizer, LENGTH, SEQUENCES)
        given = [*examples(ids, tokenizer.mask_token_id)]
        with_copies, without = (torch.stack([some[i] for some in given]) for i in (0, 1))
        places, tokens = (torch.tensor([some[i] for some in given]) for i in (2, 3))
        before = losses(model, with_copies, places, tokens).mean()
        after = losses(model, without, places, tokens).mean()
        print(f"| {path} | {before:.2f} | {after:.2f} | {after - before:.2f} |", flush=True)


if __name__ == "__main__":
    main()
