"""Creates the text of a model card (README.md), of an export or of a run's model, in Markdown."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert.config import BertConfig
from keras_bert.text.settings import TokenizerSettings

TASK_DESCRIPTIONS = {
    "classification": "predicts the label or score of a text",
    "question_answering": "answers questions with a span of a given text",
    "ner": "finds named entities in texts",
    "fill_mask": "predicts the tokens at [MASK] in a text",
    "embedding": "converts texts to embedding vectors",
}
TRAINING_SETTINGS = (
    "init_checkpoint",
    "objective",
    "loss",
    "optimizer",
    "learning_rate",
    "num_train_epochs",
    "max_seq_length",
    "train_batch_size",
    "random_seed",
    "mixed_precision",
)
_PRETRAINED = "was pre-trained on unlabeled text"
# Keys in results.json that are not scores; those that end in _truncated are not scores either.
_NOT_SCORES = {"step", "best_step", "peak_memory_gb"}
_NOT_SCORES |= {"examples_per_second", "tokens_per_second", "mfu"}
# Checksums in run.json that belong to the model, and not to the data.
_NOT_DATA = {"weights_sha256", "vocab_sha256"}


# --- exports ---


def model_card(
    info: Mapping[str, Any],
    config: BertConfig,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    request: Mapping[str, str],
) -> str:
    """Returns the model card: task, data, training, scores, limits and an example request.

    Args:
        info: the content of export.json.
        config: the model's sizes.
        run: the settings in the run's run.json; empty if the model was not written by a run.
        results: the content of the run's results.json; empty if it does not exist.
        request: {input name: text} of an example request; empty if the model takes no texts.
    """
    return _card(
        info["task"],
        config,
        TokenizerSettings.read("export.json", info),
        f"Matrix products are computed in {info['compute_type']}. "
        f"Exported by keras_bert from `{info['model']}`.",
        run,
        results,
        _limits(info, was_scored=any(map(_is_score, results))),
        labels=info.get("labels", ()),
        pooling=info.get("pooling"),
        usage=_signatures(info) + _example(request),
    )


def _limits(info: Mapping[str, Any], was_scored: bool) -> list[str]:
    length = info.get("max_seq_length")
    limits = {
        "question_answering": (
            "Long contexts are split into windows; the question and a window have at most "
            f"{length} tokens together. Questions are truncated to {info.get('max_query_length')} "
            f"tokens. An answer has at most {info.get('max_answer_length')} tokens."
        ),
        "ner": f"Long texts are split into windows of at most {length} tokens.",
    }
    if info.get("long_text") == "windows":
        limits[info["task"]] = (
            f"Long texts are split into windows of at most {length} tokens, including [CLS] and "
            "[SEP], whose outputs are pooled."
        )
    if info.get("long_text") == "head_tail":
        limits[info["task"]] = (
            f"Inputs are truncated in the middle to {length} tokens, including [CLS] and [SEP]."
        )
    lines = [
        limits.get(
            info["task"], f"Inputs are truncated to {length} tokens, including [CLS] and [SEP]."
        )
    ]
    if info["format"] != "saved_model":
        lines = [
            "The inputs are token ids: tokenize texts with the `vocab.txt` in this folder.",
            f"A row can have at most {length} tokens; the runtime raises an error for longer rows.",
        ]
    if was_scored:
        lines.append(
            "The scores were measured on the data listed above and may differ on other texts."
        )
    if was_scored and info["compute_type"] != "float32":
        lines.append(
            "The scores were measured before the matrix products were converted to "
            f"{info['compute_type']}."
        )
    return lines


def _signatures(info: Mapping[str, Any]) -> str:
    parts = []
    for name, signature in info["signatures"].items():
        rows = [
            f"| {key} | {direction} | {kind} {_shape(shape)} |"
            for direction, specs in (("in", signature["inputs"]), ("out", signature["outputs"]))
            for key, (kind, shape) in specs.items()
        ]
        parts += [
            f"### `{name}`\n",
            "| name | direction | type |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    return "\n".join(parts)


def _example(request: Mapping[str, str]) -> str:
    if not request:
        return ""
    body = json.dumps({"instances": [request]})
    return f"\n    curl -d '{body}' http://localhost:8501/v1/models/model:predict"


def _shape(shape: list[int]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"


# --- the model of a run ---


def run_card(
    task: str | None,
    config: BertConfig,
    tokenizer_settings: TokenizerSettings,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    labels: Sequence[str] = (),
) -> str:
    """Returns the model card of a run's model as Markdown.

    `task` is a fine-tuning task such as `classification`; None for pre-training. `settings` are
    those in run.json, and `results` the metrics in results.json. `labels` are those of a
    classifier, in the order of its logits.
    """
    base = settings.get("init_checkpoint")
    start = f"the weights of `{public_name(base)}`" if base else "newly initialized weights"
    length = settings.get("max_seq_length") or config.max_position_embeddings
    limits = [f"The model was trained on sequences of at most {length} tokens."]
    if task is None:
        limits.append("Its encoder must be fine-tuned before it can solve a task.")
    if any(map(_is_score, results)):
        limits.append(
            "The scores were measured on the data listed above; other data can give other scores."
        )
    return _card(
        task,
        config,
        tokenizer_settings,
        f"Trained by keras_bert from {start}.",
        settings,
        results,
        limits,
        labels=labels,
    )


def _card(
    task: str | None,
    config: BertConfig,
    tokenizer_settings: TokenizerSettings,
    origin: str,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    limits: Sequence[str],
    *,
    labels: Sequence[str],
    pooling: str | None = None,
    usage: str = "",
) -> str:
    """Returns a model card; `origin` is a sentence about how the model was made."""
    names = ", ".join(f"`{label}`" for label in labels)
    sections = [
        f"# BERT model that {TASK_DESCRIPTIONS[task] if task else _PRETRAINED}\n\n"
        f"{_describe_sizes(config, tokenizer_settings)} {origin}\n"
        + (f"\nLabels, in the order of the logits: {names}.\n" if names else "")
        + (f"\nsentence-transformers uses the output `{pooling}`.\n" if pooling else ""),
        _section("Data", data_table(run)),
        _section("Training", training_table(run)),
        _section("Scores", _scores_table(results)),
        _section("Limits", "\n".join(f"- {line}" for line in limits)),
        _section("Usage", usage),
    ]
    return "\n".join(part for part in sections if part)


# --- sections ---


def _describe_sizes(config: BertConfig, settings: TokenizerSettings) -> str:
    """Returns sentences with the sizes of the encoder and its vocabulary, and unusual settings."""
    accents = ""
    if settings.strip_accents is not None:
        accents = " without accents" if settings.strip_accents else " with accents"
    words = "" if settings.tokenize_chinese_chars else " CJK ideographs are not separate words."
    names = ", ".join(f"`{token.content}`" for token in settings.user_tokens)
    whole = f" Tokens that stay whole: {names}." if names else ""
    return (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} attention heads, a vocabulary of {config.vocab_size:,} "
        f"{'lower-cased' if settings.do_lower_case else 'cased'} tokens{accents}.{words}{whole}"
    )


def _section(title: str, body: str) -> str:
    """Returns a section of a model card; "" if its body is empty."""
    return f"## {title}\n\n{body}\n" if body else ""


def _table(rows: Mapping[str, Any]) -> str:
    """Returns a Markdown table with the columns name and value; "" if there are no rows."""
    if not rows:
        return ""
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _is_score(name: str) -> bool:
    """Returns whether a key of results.json is the name of a score."""
    return name not in _NOT_SCORES and not name.endswith("_truncated")


def training_table(run: Mapping[str, Any]) -> str:
    """Returns the table of a run's main settings, from the settings in run.json."""
    rows = {name: run[name] for name in TRAINING_SETTINGS if run.get(name) is not None}
    if "init_checkpoint" in rows:
        rows["init_checkpoint"] = _public_names(rows["init_checkpoint"])
    return _table(rows)


def data_table(run: Mapping[str, Any]) -> str:
    """Returns the table of a run's data files and checksums, from the settings in run.json."""
    names = ("task_name", "data_dir", "input_file", "train_file")
    names += ("eval_file", "test_file", "predict_file")
    rows = {name: _public_names(run[name]) for name in names if run.get(name)}
    checksums = [name for name in run if name.endswith("_sha256") and name not in _NOT_DATA]
    return _table(rows | {name: run[name] for name in checksums})


def public_name(path: str | Path) -> str:
    """Returns the name of a file or folder without the local folders that contain it.

    For the model of a run, OUTPUT_DIR/model, this is the name of OUTPUT_DIR.
    """
    path = Path(path)
    named = path.parent if path.name == "model" and path.parent.name else path
    return named.name or str(path)


def _public_names(paths: object) -> str:
    """Returns the names of one or several paths; skips other values, as of a damaged run.json."""
    paths = paths if isinstance(paths, list | tuple) else [paths]
    return ", ".join(public_name(path) for path in paths if isinstance(path, str))


def _scores_table(results: Mapping[str, Any]) -> str:
    """Returns the table of the scores in the content of results.json."""
    scores = {
        name: f"{value:.4f}" if isinstance(value, float) else value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_score(name)
    }
    return _table(scores)
