"""Writes the model card, README.md in an export, from export.json and the training run's files.

The card lists the task, the training data, the scores, the limits, and an example request. It
contains only what these files record.
"""

import json
from collections.abc import Mapping
from typing import Any

from keras_bert.config import BertConfig

_WHAT = {
    "classification": "tells the class of a text",
    "question_answering": "answers questions by a span of a context",
    "ner": "finds named entities in texts",
    "fill_mask": "fills [MASK] in texts",
    "embedding": "turns texts into vectors",
}
_TRAINED_WITH = (
    "init_checkpoint",
    "learning_rate",
    "num_train_epochs",
    "train_batch_size",
    "random_seed",
    "mixed_precision",
)
# Keys in results.json that are not scores.
_NO_SCORES = {"step", "best_step"}


def model_card(
    info: Mapping[str, Any],
    config: BertConfig,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    request: Mapping[str, str],
) -> str:
    """Writes the model card and returns it as Markdown.

    Args:
        info: the content of export.json.
        config: the sizes of the encoder.
        run: the settings in run.json; empty if there is no run.
        results: the scores in results.json; empty if there is no run.
        request: the texts of an example request by input name; empty if the model takes no texts.
    """
    limits = _limits(info, was_scored=bool(results.keys() - _NO_SCORES))
    sections = [
        _opening(info, config),
        _section("Data", _data(run)),
        _section("Training", _table({name: run[name] for name in _TRAINED_WITH if name in run})),
        _section("Scores", _scores(results)),
        _section("Limits", "\n".join(f"- {line}" for line in limits)),
        _section("How to call it", _calls(info) + _example(request)),
    ]
    return "\n".join(section for section in sections if section)


def _opening(info: Mapping[str, Any], config: BertConfig) -> str:
    case = "lower-cased" if info["do_lower_case"] else "cased"
    labels = ", ".join(f"`{label}`" for label in info.get("labels", ()))
    pooling = info.get("pooling")
    return (
        f"# A BERT that {_WHAT[info['task']]}\n\n"
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, a vocabulary of {config.vocab_size:,} {case} pieces; "
        f"products in {info['compute_type']}. Exported by keras_bert from `{info['model']}`.\n"
        + (f"\nIts labels, in the order of the logits: {labels}.\n" if labels else "")
        + (f"\nsentence-transformers takes the vector `{pooling}`.\n" if pooling else "")
    )


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}\n" if body else ""


def _table(rows: Mapping[str, Any]) -> str:
    if not rows:
        return ""
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _data(run: Mapping[str, Any]) -> str:
    names = ("task_name", "data_dir", "train_file", "eval_file", "test_file", "predict_file")
    rows = {name: run[name] for name in names if run.get(name)}
    rows |= {name: run[name] for name in run if name.endswith("_sha256")}
    return _table(rows)


def _scores(results: Mapping[str, Any]) -> str:
    figures = {
        name: f"{value:.4f}" if isinstance(value, float) else value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return _table(figures)


def _limits(info: Mapping[str, Any], was_scored: bool) -> list[str]:
    """Lists the length limits of the model and the conditions under which the scores hold."""
    length = info.get("max_seq_length")
    limits = {
        "question_answering": (
            f"Contexts are read in windows of {length} pieces, questions up to "
            f"{info.get('max_query_length')} pieces; an answer has at most "
            f"{info.get('max_answer_length')}."
        ),
        "ner": f"Texts are read in windows of {length} pieces.",
    }
    lines = [limits.get(info["task"], f"What is beyond {length} pieces of a text is not read.")]
    if info["format"] != "saved_model":
        lines = [
            "It takes token ids: cut texts into the pieces of the `vocab.txt` in this folder.",
            f"A row has at most {length} pieces; the runtime refuses a longer one.",
        ]
    if was_scored:
        lines.append(
            "The scores are those of the data named above; on other text they were not measured."
        )
    if was_scored and info["compute_type"] != "float32":
        lines.append(f"Scores were measured before the products became {info['compute_type']}.")
    return lines


def _calls(info: Mapping[str, Any]) -> str:
    parts = []
    for name, signature in info["signatures"].items():
        rows = [
            f"| {key} | {way} | {kind} {_shape(shape)} |"
            for way, specs in (("in", signature["inputs"]), ("out", signature["outputs"]))
            for key, (kind, shape) in specs.items()
        ]
        parts += [f"### `{name}`\n", "| name | | type |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(parts)


def _example(request: Mapping[str, str]) -> str:
    if not request:
        return ""
    body = json.dumps({"instances": [request]})
    return f"\n    curl -d '{body}' http://localhost:8501/v1/models/model:predict"


def _shape(shape: list[int]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"
