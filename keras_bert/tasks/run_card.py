"""Creates the model card of a training run, which becomes README.md in the run's `model/`."""

from collections.abc import Mapping
from typing import Any

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.export.model_card import (
    TASK_DESCRIPTIONS,
    data_table,
    describe_sizes,
    is_score,
    list_labels,
    public_name,
    scores_table,
    section,
    training_table,
)

_PRETRAINED = "was pre-trained on unlabeled text"


def run_card(
    task: str | None,
    description: ModelDescription,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
) -> str:
    """Returns the model card of a run's model as Markdown.

    `task` is a fine-tuning task such as `classification`; None for pre-training. `settings` are
    those in run.json, and `results` the metrics in results.json.
    """
    sections = [
        _opening(task, description, settings.get("init_checkpoint")),
        section("Data", data_table(settings)),
        section("Training", training_table(settings)),
        section("Scores", scores_table(results)),
        section("Limits", _limits(task, description, settings, results)),
    ]
    return "\n".join(part for part in sections if part)


def _opening(task: str | None, description: ModelDescription, base: str | None) -> str:
    start = f"the weights of `{public_name(base)}`" if base else "newly initialized weights"
    sizes = describe_sizes(description.config, description.tokenizer_settings)
    return (
        f"# BERT model that {TASK_DESCRIPTIONS[task] if task else _PRETRAINED}\n\n"
        f"{sizes} Trained by keras_bert from {start}.\n" + list_labels(description.labels or ())
    )


def _limits(
    task: str | None,
    description: ModelDescription,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
) -> str:
    length = settings.get("max_seq_length") or description.config.max_position_embeddings
    lines = [f"The model was trained on sequences of at most {length} tokens."]
    if task is None:
        lines.append("Its encoder must be fine-tuned before it can solve a task.")
    if any(map(is_score, results)):
        lines.append(
            "The scores were measured on the data listed above; other data can give other scores."
        )
    return "\n".join(f"- {line}" for line in lines)
