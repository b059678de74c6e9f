"""What a run and an export say of themselves -> the model card, README.md in the export.

Nothing is in it that the files do not say: the task, what it was trained on, its scores, its
limits, and how it is called.
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


def model_card(
    info: Mapping[str, Any],
    config: BertConfig,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
) -> str:
    """Writes the card.

    Args:
        info: what export.json says.
        config: the encoder's sizes.
        run: the settings in run.json; empty without a run.
        results: the figures in results.json; empty without a run.

    Returns:
        Markdown.
    """
    sections = [
        _opening(info, config),
        _section("Data", _data(run)),
        _section("Training", _table({name: run[name] for name in _TRAINED_WITH if name in run})),
        _section("Scores", _scores(results)),
        _section("Limits", "\n".join(f"- {line}" for line in _limits(info))),
        _section("How to call it", _calls(info)),
    ]
    return "\n".join(section for section in sections if section)


def _opening(info: Mapping[str, Any], config: BertConfig) -> str:
    case = "lower-cased" if info["do_lower_case"] else "cased"
    labels = ", ".join(f"`{label}`" for label in info.get("labels", ()))
    return (
        f"# A BERT that {_WHAT[info['task']]}\n\n"
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, a vocabulary of {config.vocab_size:,} {case} pieces; "
        f"products in {info['compute_type']}. Exported by keras_bert from `{info['model']}`.\n"
        + (f"\nIts labels, in the order of the logits: {labels}.\n" if labels else "")
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


def _limits(info: Mapping[str, Any]) -> list[str]:
    """Says what the model does not read, and what nobody measured."""
    length = info.get("max_seq_length")
    limits = {
        "question_answering": (
            f"Contexts are read in windows of {length} pieces, questions up to "
            f"{info.get('max_query_length')} pieces; an answer has at most "
            f"{info.get('max_answer_length')}."
        ),
        "ner": f"Texts are read in windows of {length} pieces.",
    }
    lines = [
        limits.get(info["task"], f"What is beyond {length} pieces of a text is not read."),
        "The scores are those of the data named above; on other text they were not measured.",
    ]
    if info["compute_type"] != "float32":
        lines.append(f"Scores were measured before the products became {info['compute_type']}.")
    return lines


def _calls(info: Mapping[str, Any]) -> str:
    if "signatures" not in info:
        return (
            "Token ids in: `input_ids`, `input_mask`, `segment_ids`, int32 [batch, length], cut by "
            "the `vocab.txt` in this folder."
        )
    parts = []
    for name, signature in info["signatures"].items():
        rows = [
            f"| {key} | {way} | {kind} {_shape(shape)} |"
            for way, specs in (("in", signature["inputs"]), ("out", signature["outputs"]))
            for key, (kind, shape) in specs.items()
        ]
        parts += [f"### `{name}`\n", "| name | | type |", "| --- | --- | --- |", *rows, ""]
    example = {name: f"a {name.replace('_', ' ')}" for name in _text_inputs(info)}
    body = json.dumps({"instances": [example]})
    parts.append(f"    curl -d '{body}' http://localhost:8501/v1/models/model:predict")
    return "\n".join(parts)


def _text_inputs(info: Mapping[str, Any]) -> list[str]:
    return list(info["signatures"]["serving_default"]["inputs"])


def _shape(shape: list[int]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"
