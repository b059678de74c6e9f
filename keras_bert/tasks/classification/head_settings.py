"""Determines the labels and problem type of a classifier from its checkpoint and run."""

from collections.abc import Sequence
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.tasks.checks import check_list
from keras_bert.tasks.classification import glue
from keras_bert.tasks.classification.metrics import DEFAULT_METRICS
from keras_bert.tasks.classification.processor import PROBLEM_TYPES, ClassifierSettings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.loading import Source


def transformers_problem_type(problem_type: str) -> str:
    """Converts `single_label` to `single_label_classification`, as transformers names it."""
    return problem_type + "_classification" * (problem_type != "regression")


def short_problem_type(name: str | None, where: Any) -> str | None:
    """Converts a problem type of transformers, such as `single_label_classification`.

    Returns one of PROBLEM_TYPES, or None for None. Raises InputError if the type is unknown; the
    message starts with `where`.
    """
    if name is None:
        return None
    short = name.removesuffix("_classification")
    if short not in PROBLEM_TYPES:
        known = ", ".join(f"{kind}_classification" for kind in PROBLEM_TYPES[:2])
        raise InputError(f"{where}: problem_type is {name!r}; expected one of {known}, regression")
    return short


def takes_pairs(source: Source) -> bool:
    """Returns whether the run that trained the classifier used pairs; false without such a run."""
    task = glue_task(source)
    if task is not None:
        return len(task.text_columns) == 2
    return bool(source.run.setting("text_pair_column", str, ""))


def metric_names(source: Source, problem_type: str) -> Sequence[str]:
    """Returns the metrics of the GLUE task that a model was trained on, or the default ones."""
    task = glue_task(source)
    return DEFAULT_METRICS[problem_type] if task is None else task.metrics


def glue_task(source: Source) -> glue.GlueTask | None:
    """Returns the GLUE task of the run that trained the classifier; None without such a run."""
    name = source.run.setting("task_name", str, "")
    return glue.find_task(name) if name and name.lower() != "custom" else None


def head_settings(
    source: Source, labels: Sequence[str] | None, problem_type: str | None
) -> ClassifierSettings:
    """Determines a classifier's labels and problem type; other settings have their defaults.

    If `labels` or `problem_type` is None, the value of the checkpoint's classification head is
    used. If the checkpoint does not record a problem type, it is regression for a head with one
    logit without given labels, and single_label otherwise.

    Raises:
        InputError: the labels are missing or do not match the head, or the problem type is unknown.
    """
    checkpoint = source.checkpoint
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels
    known = checkpoint.labels
    if known is None and num_logits:  # transformers does not save its default label names.
        known = [f"LABEL_{index}" for index in range(num_logits)]
    if problem_type not in (None, *PROBLEM_TYPES):
        raise InputError(
            f"problem_type={problem_type!r}: expected one of {', '.join(PROBLEM_TYPES)}"
        )
    stored_type = checkpoint.problem_type if num_logits else None
    kind = problem_type or short_problem_type(stored_type, checkpoint.path)
    if kind is None:
        kind = "regression" if num_logits == 1 and not labels else "single_label"
    names = _label_names(labels, known if num_logits else None, kind, checkpoint.path)
    if num_logits and num_logits != (len(names) or 1):
        raise InputError(
            f"labels={list(names)}: {checkpoint.path} has a head of {num_logits} logits; expected "
            "as many labels; for a new head, run keras-bert convert SRC DST "
            "--noheads"
        )
    return ClassifierSettings(names, kind)


def _label_names(
    given: Sequence[str] | None, known: Sequence[str] | None, kind: str, path: Any
) -> tuple[str, ...]:
    """Returns the class names, `given` or else `known`, in the order of the head's logits.

    `known` are the class names of the checkpoint's head; None without a head. `kind` is the problem
    type; regression has no class names.
    """
    if kind == "regression":
        if given:
            raise InputError(f"labels={list(given)}: expected no labels for a regression")
        return ()
    if given is None:
        if not known:
            raise InputError(
                f"labels is None, but {path} has no classification head; expected the class names, "
                'such as labels=["0", "1"]'
            )
        return tuple(known)
    names = [str(name) for name in check_list("labels", given, "names")]
    if len(names) < 2 - (kind == "multi_label") or len(set(names)) < len(names):
        raise InputError(f"labels={names}: expected at least two different names")
    if known is None or all(name.startswith("LABEL_") for name in known):
        return tuple(names)
    if ordered := in_order_of(known, names):
        return tuple(ordered)
    raise InputError(
        f"labels={names}: {path} has the labels {', '.join(known)}; expected the same; for "
        "a new head, run keras-bert convert SRC DST --noheads"
    )
