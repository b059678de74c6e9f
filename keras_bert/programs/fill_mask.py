"""Fills the masks of sentences with a pre-trained model.

keras-bert fill-mask --model_dir=out/model "The [MASK] statement ends a loop."
"""

from collections.abc import Sequence

from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "model_dir", None, "Pre-trained model: a model directory or any other checkpoint."
    )
    define.integer("max_seq_length", 128, "Tokens of a sentence at most.", lower_bound=4)
    define.integer("top_k", 5, "Tokens printed for each mask.", lower_bound=1)
    define.require("model_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Prints the most probable tokens for each mask in the sentences given as arguments."""
    if not arguments:
        raise InputError('give one or more sentences, for example "The [MASK] is red."')
    start_tensorflow()  # Invalid flags do not wait for it.
    from keras_bert.checkpoints.open_checkpoint import open_checkpoint
    from keras_bert.models import BertPretrainer
    from keras_bert.tasks.fill_mask.fill_mask import fill_masks
    from keras_bert.text.tokenizer import BertTokenizer

    directory = open_checkpoint(flags.model_dir)
    if directory.vocab is None:
        raise InputError(f"{directory.why_no_vocab}; expected a pre-trained model with one")
    model = BertPretrainer(directory.config)
    report = directory.load_into(model)
    if any(name.startswith("masked_lm") for name in report.new):
        raise InputError(
            f"--model_dir={flags.model_dir} has no masked-LM head; expected a pre-trained model"
        )
    tokenizer = BertTokenizer(directory.vocab, directory.do_lower_case, keep_special_tokens=True)
    length = min(flags.max_seq_length, directory.config.max_position_embeddings)
    fillings = fill_masks(model, tokenizer, arguments, length, flags.top_k)
    for text, masks in zip(arguments, fillings, strict=True):
        print(text)
        for filling in masks:
            print("    " + "  ".join(f"{token} {p:.1%}" for token, p in filling))


PROGRAM = Program("fill-mask", __doc__, define_flags, main)
