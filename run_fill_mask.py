"""Fills the masks of sentences with a pre-trained model.

python run_fill_mask.py --model_dir=out/model "The [MASK] statement ends a loop."
"""

from collections.abc import Sequence

from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs.program import require, run, start_tensorflow

FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", None, "Model directory, as run_pretraining.py leaves it.")
flags.DEFINE_integer("max_seq_length", 128, "Pieces that a sentence may have.", lower_bound=4)
flags.DEFINE_integer("top_k", 5, "Fillings a mask.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
    """Prints the likeliest fillings of each mask in the sentences given as arguments."""
    texts = argv[1:]
    if not texts:
        raise InputError('give one or more sentences, for example "The [MASK] is red."')
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.checkpoints.open_checkpoint import open_checkpoint
    from keras_bert.models import BertPretrainer
    from keras_bert.tasks.fill_mask.fill_mask import fill_masks
    from keras_bert.text.tokenizer import BertTokenizer

    directory = open_checkpoint(FLAGS.model_dir)
    if directory.vocab is None:
        raise InputError(f"{directory.why_no_vocab}; expected a pre-trained model with one")
    model = BertPretrainer(directory.config)
    report = directory.load_into(model)
    if any(name.startswith("masked_lm") for name in report.new):
        raise InputError(
            f"--model_dir={FLAGS.model_dir} has no masked-LM head; expected a pre-trained model"
        )
    tokenizer = BertTokenizer(directory.vocab, directory.do_lower_case, keep_special_tokens=True)
    length = min(FLAGS.max_seq_length, directory.config.max_position_embeddings)
    fillings = fill_masks(model, tokenizer, texts, length, FLAGS.top_k)
    for text, masks in zip(texts, fillings, strict=True):
        print(text)
        for filling in masks:
            print("    " + "  ".join(f"{piece} {p:.1%}" for piece, p in filling))


if __name__ == "__main__":
    require("model_dir")
    run(main)
