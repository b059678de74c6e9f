"""Computes statistics of a dataset, one batch of examples at a time.

Only the hashes for finding duplicates grow with the data: 16 bytes per example.
"""

from typing import Any

import numpy as np

from data_tools.inspection.record_batches import Batch
from keras_bert.common.errors import InputError

_QUANTILES = (0, 5, 25, 50, 75, 95, 100)


class Vocabulary:
    """The tokens of a vocabulary, and the ids and token classes that the statistics need."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens
        self.mask_id = tokens.index("[MASK]")
        self.unk_id = tokens.index("[UNK]")
        self.is_special = np.isin(
            np.arange(len(tokens)), [tokens.index(t) for t in ("[PAD]", "[CLS]", "[SEP]")]
        )
        self.is_continuation = np.array([token.startswith("##") for token in tokens])

    def check(self, batch: Batch) -> None:
        """Raises an `InputError` if a batch contains ids that are not in the vocabulary."""
        for name in ("input_ids", "masked_lm_ids"):
            largest = int(batch.features[name].max(initial=0)) if name in batch.features else 0
            if largest >= len(self.tokens):
                row = int(np.argmax(batch.features[name].max(axis=1) >= len(self.tokens)))
                raise InputError(
                    f"{batch.file} record {batch.first_row + row}: {name} has {largest}; expected "
                    f"ids below the vocabulary's size, {len(self.tokens)}"
                )


class Statistics:
    """Statistics of the records of a dataset.

    Without a vocabulary, there are no statistics of [MASK], [UNK] and words.
    """

    def __init__(self, vocabulary: Vocabulary | None):
        self._vocabulary = vocabulary
        self._sums: dict[str, int] = {}
        self._histograms: dict[str, np.ndarray] = {}
        self._hashes: dict[str, list[np.ndarray]] = {"unmasked": [], "masked": []}
        self._multipliers = np.zeros(0, np.uint64)

    def add(self, batch: Batch) -> None:
        """Adds a batch, whose ids must have been checked with `Vocabulary.check`."""
        rows, size = batch.is_real.shape
        self._add("rows", rows)
        self._add("examples", len(batch.lengths))
        self._add("positions", rows * size)
        self._add("tokens", int(batch.lengths.sum()))
        self._count("length", batch.lengths)
        if batch.is_packed:
            self._count("examples_per_row", batch.examples_per_row)
        in_b = batch.features["segment_ids"][batch.is_real] != 0
        length_b = np.bincount(batch.owner[in_b], minlength=len(batch.lengths))
        self._count("length_a", batch.lengths - length_b)
        self._count("length_b", length_b)
        self._add("label_1", int(batch.next_sentence_labels.sum()))
        if self._vocabulary:
            unknown = batch.original_ids[batch.is_real] == self._vocabulary.unk_id
            self._add("unknown", np.count_nonzero(unknown))
        if batch.has_masks:
            self._add_masks(batch)
        self._add_hashes(batch)

    def _add(self, name: str, amount: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + int(amount)

    def _count(self, name: str, values: np.ndarray) -> None:
        counts = np.bincount(values)
        previous = self._histograms.get(name, np.zeros(0, np.int64))
        total = np.zeros(max(len(previous), len(counts)), np.int64)
        total[: len(previous)] += previous
        total[: len(counts)] += counts
        self._histograms[name] = total

    def _add_masks(self, batch: Batch) -> None:
        row, column, original = batch.predicted
        self._count("predictions_per_row", np.bincount(row, minlength=len(batch.is_real)))
        now = batch.features["input_ids"][row, column]
        is_kept = now == original
        self._add("kept", np.count_nonzero(is_kept))
        self._add("replaced", np.count_nonzero(~is_kept))
        if self._vocabulary:
            is_mask = ~is_kept & (now == self._vocabulary.mask_id)
            self._add("mask", np.count_nonzero(is_mask))
            self._add_words(batch, self._vocabulary)

    def _add_words(self, batch: Batch, vocabulary: Vocabulary) -> None:
        """Counts words with a predicted token, and those of them that are only partly predicted."""
        ids, chosen = batch.original_ids[batch.is_real], batch.is_predicted[batch.is_real]
        is_text = ~vocabulary.is_special[ids]
        follows_text = np.zeros_like(is_text)
        follows_text[1:] = is_text[:-1] & (batch.owner[1:] == batch.owner[:-1])
        # A token that does not continue a word starts one; [CLS] and [SEP] count as separate words.
        word = np.cumsum(~(vocabulary.is_continuation[ids] & follows_text)) - 1
        num_tokens = np.bincount(word)
        predicted = np.bincount(word[chosen], minlength=len(num_tokens))
        self._add("words_predicted", np.count_nonzero(predicted))
        partly = (predicted > 0) & (predicted < num_tokens)
        self._add("words_partly_predicted", np.count_nonzero(partly))

    def _add_hashes(self, batch: Batch) -> None:
        """Hashes each example: the sum of its ids, each times a random number for its position."""
        starts = np.cumsum(batch.lengths) - batch.lengths
        position = np.arange(len(batch.owner)) - np.repeat(starts, batch.lengths)
        if len(self._multipliers) <= batch.is_real.shape[1]:
            # The first numbers of the generator are the same for every size.
            rng = np.random.default_rng(0)
            random = rng.integers(0, 2**64, size=batch.is_real.shape[1] + 1, dtype=np.uint64)
            self._multipliers = random | np.uint64(1)
        multiplier = self._multipliers[position]
        full = starts[batch.lengths > 0]  # reduceat does not support empty sums

        def hashes(ids: np.ndarray) -> np.ndarray:
            return np.add.reduceat((ids.astype(np.uint64) + np.uint64(1)) * multiplier, full)

        self._hashes["unmasked"].append(hashes(batch.original_ids[batch.is_real]))
        if batch.has_masks:
            masks = batch.is_predicted[batch.is_real].astype(np.int64) << 32
            masked = batch.features["input_ids"][batch.is_real] + masks
            self._hashes["masked"].append(hashes(masked))

    def to_dict(self) -> dict[str, Any]:
        """Returns {name: value}; shares are from 0 to 1, or None if their total is 0."""
        sums = self._sums
        padding = sums.get("positions", 0) - sums.get("tokens", 0)
        statistics = {
            "rows": sums.get("rows", 0),
            "examples": sums.get("examples", 0),
            "tokens": sums.get("tokens", 0),
            "padding_share": _share(padding, sums, "positions"),
            "label_1_share": _share(sums.get("label_1", 0), sums, "examples"),
        }
        statistics |= {name: _summary(counts) for name, counts in self._histograms.items()}
        if "unknown" in sums:
            statistics["unknown_share"] = _share(sums["unknown"], sums, "tokens")
        if "kept" in sums:
            predicted = {"predictions": sums["kept"] + sums["replaced"]}
            statistics |= predicted
            statistics["predicted_share"] = _share(predicted["predictions"], sums, "tokens")
            statistics["kept_share"] = _share(sums["kept"], predicted, "predictions")
            if "mask" in sums:
                random = sums["replaced"] - sums["mask"]
                statistics["mask_share"] = _share(sums["mask"], predicted, "predictions")
                statistics["random_share"] = _share(random, predicted, "predictions")
                statistics["partly_predicted_words_share"] = _share(
                    sums["words_partly_predicted"], sums, "words_predicted"
                )
            else:
                statistics["replaced_share"] = _share(sums["replaced"], predicted, "predictions")
        for name, parts in self._hashes.items():
            if parts:
                hashes = np.concatenate(parts)
                statistics[f"duplicates_{name}"] = len(hashes) - len(np.unique(hashes))
        return statistics


def _share(part: int, sums: dict[str, int], total: str) -> float | None:
    return part / sums[total] if sums.get(total) else None


def _summary(counts: np.ndarray) -> dict[str, float]:
    """Returns the mean and quantiles ("p0", "p5", ...) of values from a histogram.

    `counts[v]` is the number of times that the value v occurs. Each quantile is one of the values.
    """
    total = max(int(counts.sum()), 1)
    reached = np.cumsum(counts)
    ranks = [max(1, -(-total * q // 100)) for q in _QUANTILES]
    quantiles = np.searchsorted(reached, ranks).tolist()
    mean = float(counts @ np.arange(len(counts)) / total)
    return {"mean": mean} | {f"p{q}": v for q, v in zip(_QUANTILES, quantiles, strict=True)}
