"""Implements `from_pretrained`: creates a network from a checkpoint of any format."""

import os
from typing import Any

from absl import logging

from keras_bert.errors import InputError
from keras_bert.models.encoder import BertNetwork

# Layer name of a head -> a variable that this head always has.
_VARIABLES = {
    "masked_lm": "masked_lm/output_bias",
    "next_sentence": "next_sentence/bias",
    "classifier": "classifier/bias",
    "span": "span/bias",
}
_FINE_TUNED = ("classifier", "span")


def load_network(
    network: type[BertNetwork], path: str | os.PathLike, arguments: dict[str, Any]
) -> Any:
    """Creates a network with the weights of a checkpoint; see `BertNetwork.from_pretrained`.

    `arguments` are the arguments of the constructor, without the config.

    Raises:
        InputError: as in `from_pretrained`, and if "num_labels" is not the number of labels of the
            checkpoint's classifier.
    """
    # Imported late, because keras_bert.checkpoints imports this package.
    from keras_bert.checkpoints.open_checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    with checkpoint.open_weights() as stored:
        found = {h for h, v in _VARIABLES.items() if stored.layout.name(v) in stored.shapes}
        known_labels = stored.num_labels
    _check_task(network, checkpoint, found)
    if "num_labels" in arguments:
        num_labels = _num_labels(path, arguments["num_labels"], known_labels)
        arguments = {**arguments, "num_labels": num_labels}
    model = network(checkpoint.config, **arguments)
    report = checkpoint.load_into(model)
    parts = [variable.split("/") for variable in report.new]
    new = sorted({"/".join(part[: 1 + (part[0] == "encoder")]) for part in parts})
    if getattr(model, "per_token", False):
        # The logits do not depend on the pooler, and public models of these tasks have no pooler.
        new = [name for name in new if name != "encoder/pooler"]
    if new:
        logging.warning(
            "%s: weights that are not in the checkpoint are newly initialized: %s",
            path,
            ", ".join(new),
        )
    return model


def _check_task(network: type[BertNetwork], checkpoint: Any, found: set[str]) -> None:
    """Rejects a checkpoint that was fine-tuned for another task."""
    from keras_bert.checkpoints.checkpoint import ARCHITECTURES

    expected, found_class = ARCHITECTURES[network.__name__], checkpoint.architecture
    fine_tuned = {*ARCHITECTURES.values()} - {"BertModel", "BertForPreTraining"}
    if not network.heads or found_class == expected:
        return
    if found_class in {*fine_tuned, "BertForMultipleChoice"}:
        problem = f"is a {found_class}"
    elif found & {*_FINE_TUNED} and not found & {*network.heads}:
        problem = f"has the head {', '.join(sorted(found & {*_FINE_TUNED}))}"
    else:
        return
    raise InputError(
        f"{network.__name__}.from_pretrained: {checkpoint.path} {problem}; expected a {expected}, "
        "or a pre-trained model without a head for another task"
    )


def _num_labels(path: str | os.PathLike, given: int | None, known: int | None) -> int:
    if given is None and known is None:
        raise InputError(
            f"num_labels is None; expected the number of labels, since {path} has no classifier"
        )
    if None not in (given, known) and given != known:
        raise InputError(f"num_labels is {given}; expected {known}, the number of logits of {path}")
    return known if given is None else given
