"""Outputs of a model -> prediction files: GLUE's submission TSV, and JSONL with probabilities.

NAME.tsv     index <TAB> prediction, with this header: a label's name, or a number
NAME.jsonl   {"index": "0", "prediction": "1", "probabilities": {"0": 0.02, "1": 0.98}}
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_bert.common.files import write_bytes
from keras_bert.tasks.classification.metrics import decide


def probabilities(problem_type: str, logits: np.ndarray) -> np.ndarray:
    """Turns logits into probabilities.

    Args:
        problem_type: single_label (they sum to 1) or multi_label (each of its own).
        logits: float [n, C].

    Returns:
        float64 [n, C].
    """
    logits = logits.astype(np.float64)
    if problem_type == "multi_label":
        return np.exp(-np.logaddexp(0, -logits))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def write_predictions(
    output_dir: Path,
    name: str,
    problem_type: str,
    labels: Sequence[str],
    indices: Sequence[str],
    logits: np.ndarray,
    score_range: tuple[float, float] | None = None,
    separator: str = ",",
) -> None:
    """Writes the predictions of one file of examples.

    Args:
        output_dir: the run's folder.
        name: the files' name without ending; GLUE's name of the submission.
        problem_type: single_label, multi_label or regression.
        labels: the C classes.
        indices: the examples' names.
        logits: float [n, C].
        score_range: a regression's predictions are brought into it.
        separator: goes between the labels of one example in the TSV file.

    Raises:
        InputError: the place cannot be written.
    """
    decided = decide(problem_type, logits)
    if problem_type == "regression":
        # GLUE's submissions have three decimals; of another number nobody knows how small it is.
        values, form = decided.astype(float), ".7g"
        if score_range is not None:
            values, form = np.clip(values, *score_range), ".3f"
        cells = [f"{value:{form}}" for value in values]
        records = [{"prediction": float(f"{value:.7g}")} for value in values]
    else:
        records = [
            {
                "prediction": named(row, labels),
                "probabilities": {
                    label: round(float(p), 6) for label, p in zip(labels, shares, strict=True)
                },
            }
            for row, shares in zip(decided, probabilities(problem_type, logits), strict=True)
        ]
        words = [record["prediction"] for record in records]
        cells = [word if isinstance(word, str) else separator.join(word) for word in words]
    rows = ["index\tprediction", *map("\t".join, zip(indices, cells, strict=True))]
    lines = [
        json.dumps({"index": index} | record, ensure_ascii=False)
        for index, record in zip(indices, records, strict=True)
    ]
    for suffix, content in (("tsv", rows), ("jsonl", lines)):
        write_bytes(
            output_dir / f"{name}.{suffix}", "".join(f"{line}\n" for line in content).encode()
        )


def named(decided: np.ndarray, labels: Sequence[str]) -> str | list[str]:
    """Names what was decided for one example.

    Args:
        decided: the number of a class, or a row of 0 and 1, [C].
        labels: the C classes.

    Returns:
        The class, or the list of those that are 1.
    """
    if np.ndim(decided):
        return [label for label, on in zip(labels, decided, strict=True) if on]
    return labels[int(decided)]
