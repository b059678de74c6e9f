"""Creates the text of a model card (README.md), of an export or of a run's model, in Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert.config import BertConfig
from keras_bert.models import NETWORKS
from keras_bert.text.settings import TokenizerSettings

_PURPOSES = {network.task: network.purpose for network in NETWORKS}
_PURPOSES[None] = "was pre-trained on unlabeled text"
# Settings in run.json whose values are paths or names, and other settings of training.
_PATHS = ("init_checkpoint", "task_name", "data_dir", "input_file", "train_file")
_PATHS += ("eval_file", "predict_file")
_TRAINING = ("objective", "loss", "optimizer", "learning_rate", "num_train_epochs")
_TRAINING += ("max_seq_length", "train_batch_size", "random_seed", "mixed_precision")
# Keys in results.json that are not scores; those that end in _truncated are not scores either.
_NOT_SCORES = {"step", "best_step", "peak_memory_gb"}
_NOT_SCORES |= {"examples_per_second", "tokens_per_second", "mfu"}
# Checksums in run.json that belong to the model, and not to the data.
_NOT_DATA = {"weights_sha256", "vocab_sha256"}


def model_card(
    info: Mapping[str, Any],
    config: BertConfig,
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    request: Mapping[str, str],
) -> str:
    """Returns the model card of an export: task, data, training, scores, limits and an example.

    Args:
        info: the content of export.json.
        config: the model's sizes.
        run: the settings in the run's run.json; empty if the model was not written by a run.
        results: the content of the run's results.json; empty if it does not exist.
        request: {input name: text} of an example request; empty if the model takes no texts.
    """
    about = [
        f"{_sizes(config, TokenizerSettings.read('export.json', info))} Matrix products are "
        f"computed in {info['compute_type']}. Exported by keras_bert from `{info['model']}`.",
        *_labels(info.get("labels")),
    ]
    if info.get("pooling"):
        about.append(f"sentence-transformers uses the output `{info['pooling']}`.")
    limits = _limits(info)
    if _scores(results) and info["compute_type"] != "float32":
        limits.append(
            "The scores were measured before the matrix products were converted to "
            f"{info['compute_type']}."
        )
    usage = _table(
        ("signature", "direction", "name", "type"),
        (
            (f"`{name}`", direction[:-1], key, f"{kind} {_shape(shape)}")
            for name, signature in info["signatures"].items()
            for direction in ("inputs", "outputs")
            for key, (kind, shape) in signature[direction].items()
        ),
    )
    if request:
        body = json.dumps({"instances": [request]})
        usage += f"\n\n    curl -d '{body}' http://localhost:8501/v1/models/model:predict"
    return _card(info["task"], about, run, results, limits, usage)


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
    about = [
        f"{_sizes(config, tokenizer_settings)} Trained by keras_bert from {start}.",
        *_labels(labels),
    ]
    length = settings.get("max_seq_length") or config.max_position_embeddings
    limits = [f"The model was trained on sequences of at most {length} tokens."]
    if task is None:
        limits.append("Its encoder must be fine-tuned before it can solve a task.")
    return _card(task, about, settings, results, limits)


def _card(
    task: str | None,
    about: Sequence[str],
    run: Mapping[str, Any],
    results: Mapping[str, Any],
    limits: Sequence[str],
    usage: str = "",
) -> str:
    """Returns a model card; `about` are paragraphs about the model."""
    checksums = [name for name in run if name.endswith("_sha256") and name not in _NOT_DATA]
    scores = _scores(results)
    if scores:
        warning = "The scores were measured on the data listed above; other data can give others."
        limits = [*limits, warning]
    sections = {
        "Data": _table(("", ""), _settings(run, [*_PATHS[1:], *checksums])),
        "Training": _table(("", ""), _settings(run, [_PATHS[0], *_TRAINING])),
        "Scores": _table(("", ""), scores.items()),
        "Limits": "\n".join(f"- {line}" for line in limits),
        "Usage": usage,
    }
    parts = [f"# BERT model that {_PURPOSES[task]}", *about]
    parts += [f"## {title}\n\n{body}" for title, body in sections.items() if body]
    return "\n\n".join(parts) + "\n"


def _sizes(config: BertConfig, settings: TokenizerSettings) -> str:
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


def _labels(labels: Sequence[str] | None) -> list[str]:
    names = ", ".join(f"`{label}`" for label in labels or ())
    return [f"Labels, in the order of the logits: {names}."] if names else []


def _limits(info: Mapping[str, Any]) -> list[str]:
    """Returns what an export does with long inputs."""
    length, task = info.get("max_seq_length"), info["task"]
    if info["format"] != "saved_model":
        return [
            "The inputs are token ids: tokenize texts with the `vocab.txt` in this folder.",
            f"A row can have at most {length} tokens; the runtime raises an error for longer rows.",
        ]
    if task == "question_answering":
        return [
            "Long contexts are split into windows; the question and a window have at most "
            f"{length} tokens together. Questions are truncated to {info['max_query_length']} "
            f"tokens. An answer has at most {info['max_answer_length']} tokens."
        ]
    if task == "ner":
        return [f"Long texts are split into windows of at most {length} tokens."]
    if info.get("long_text") == "windows":
        return [
            f"Long texts are split into windows of at most {length} tokens, including [CLS] and "
            "[SEP], whose outputs are pooled."
        ]
    where = " in the middle" if info.get("long_text") == "head_tail" else ""
    return [f"Inputs are truncated{where} to {length} tokens, including [CLS] and [SEP]."]


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"


def _settings(run: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the names and values of the settings that a run has, without local folders."""
    rows = []
    for name in names:
        value = run.get(name)
        if value and name in _PATHS:
            paths = value if isinstance(value, list | tuple) else [value]
            value = ", ".join(map(public_name, paths))
        if value not in (None, ""):
            rows.append((name, value))
    return rows


def _scores(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores in the content of results.json."""
    return {
        name: f"{value:.4f}" if isinstance(value, float) else value
        for name, value in results.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in _NOT_SCORES
        and not name.endswith("_truncated")
    }


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table; "" if there are no rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", "|" + " --- |" * len(header), *lines])


def public_name(path: str | Path) -> str:
    """Returns the name of a file or folder without the local folders that contain it.

    For the model of a run, OUTPUT_DIR/model, this is the name of OUTPUT_DIR. For a model of the
    Hugging Face Hub, hf://NAME or CACHE/models--ORGANIZATION--NAME/snapshots/COMMIT, this is its
    name on the Hub.
    """
    if str(path).startswith("hf://"):
        return str(path).removeprefix("hf://")
    path = Path(path)
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    named = path.parent if path.name == "model" and path.parent.name else path
    return named.name or str(path)
