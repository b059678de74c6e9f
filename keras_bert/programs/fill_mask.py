"""Fills the masks of sentences with a pre-trained model.

    keras-bert fill-mask --model_dir=bert "The [MASK] statement ends a loop."

Without sentences, it reads one per line from standard input, and answers with a line of JSON:

    echo "Hello [MASK]!" | keras-bert fill-mask --model_dir=bert
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import ANY_MODEL, MAX_SEQ_LENGTH, option
from keras_bert.programs.program import Program, answer_lines
from keras_bert.startup import start_tensorflow


@dataclass(frozen=True)
class FillMaskOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "model"
    model_dir: str = option("", f"Pre-trained model: {ANY_MODEL}.", required=True)
    max_seq_length: int = option(
        128,
        "Maximum number of tokens in a sentence; longer sentences are truncated.",
        min=5,
        max=MAX_SEQ_LENGTH,
    )
    top_k: int = option(5, "Number of tokens printed for each mask.", min=1)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Prints the most probable tokens for each mask in the sentences given as arguments.

    Without arguments, it answers the lines of standard input.
    """
    for text in arguments:
        if re.search(r"[\ud800-\udfff]", text):  # Bytes of the command line that are not UTF-8.
            raise InputError(f"the sentence {text[:80]!r} is not UTF-8; expected text in UTF-8")
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.checkpoints.open import open_checkpoint
    from keras_bert.tasks.fill_mask import MaskFiller

    checkpoint = open_checkpoint(flags.model_dir)
    checkpoint.check_task(MaskFiller.task, MaskFiller.__name__)
    length = min(flags.max_seq_length, checkpoint.config.max_position_embeddings)
    filler = MaskFiller.from_checkpoint(checkpoint, max_seq_length=length, top_k=flags.top_k)
    if filler.untrained:
        raise InputError(
            f"--model_dir={flags.model_dir} has no masked-LM head; expected a pre-trained model"
        )
    if not arguments:

        def answer(lines: list[str]) -> Iterator[dict[str, Any]]:
            answers = filler.predict(lines)
            names = ("tokens", "scores", "truncated")
            for tokens, scores, truncated in zip(*(answers[name] for name in names), strict=True):
                rounded = [[round(score, 6) for score in row] for row in scores.tolist()]
                yield {
                    "tokens": tokens.tolist(),
                    "scores": rounded,
                    "truncated": bool(truncated),
                }

        answer_lines(answer)
        return
    answers = filler.predict(arguments)
    filler.report_truncation(answers["truncated"], "sentences")
    for text, tokens in zip(arguments, answers["tokens"], strict=True):
        if not len(tokens):
            raise InputError(
                f"no [MASK] within the first {length} tokens of the text {text[:80]!r}; expected "
                "at least one"
            )
    for text, tokens, scores in zip(arguments, answers["tokens"], answers["scores"], strict=True):
        print(text)
        for best in zip(tokens, scores, strict=True):
            print("    " + "  ".join(f"{t} {p:.1%}" for t, p in zip(*best, strict=True)))


PROGRAM = Program("fill-mask", __doc__, (FillMaskOptions,), main)
