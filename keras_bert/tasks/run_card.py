"""Writes the model card of a training run, README.md in the run's `model/`."""

from collections.abc import Mapping
from typing import Any

from keras_bert.checkpoints.model_description import ModelDescription
from keras_bert.serving.model_card import (
    NOT_SCORES,
    TASK_DESCRIPTIONS,
    data_table,
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

    Args:
        task: the kind of a fine-tuning task, such as `classification`; None for pre-training.
        description: the config, vocabulary and labels of the model.
        settings: the settings in the run's run.json.
        results: the metrics in the run's results.json.
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
    config, case = description.config, "lower-cased" if description.do_lower_case else "cased"
    labels = ", ".join(f"`{label}`" for label in description.labels or ())
    start = f"the weights of `{base}`" if base else "newly initialized weights"
    return (
        f"# BERT model that {TASK_DESCRIPTIONS[task] if task else _PRETRAINED}\n\n"
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} attention heads, a vocabulary of {config.vocab_size:,} "
        f"{case} tokens. Trained by keras_bert from {start}.\n"
        + (f"\nLabels, in the order of the logits: {labels}.\n" if labels else "")
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
    if results.keys() - NOT_SCORES:
        lines.append("The scores were measured on the data listed above and hold for no other.")
    return "\n".join(f"- {line}" for line in lines)
