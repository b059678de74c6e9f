"""Shows what a model of ablation.py learned: filled masks, and nearest sentences by embedding.

    .venv/bin/python benchmarks/ablation_examples.py [--arm=mini-mlm_nsp]

The model is pre-trained only, and in the work folder of the study. The sentences are from the two
books that it was not trained on.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import workers
from ablation.corpus import Folders
from ablation.plan import PLAN
from ablation.pretraining import is_trained, run_folder
from absl import app, flags

import keras_bert
from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput

flags.DEFINE_string("arm", "mini-mlm_nsp", "arm of the study")
flags.DEFINE_string("data_dir", str(workers.ROOT.parent / "shared/data"), "folder of the data")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ablation", "work folder of ablation.py")
FLAGS = flags.FLAGS

MASKED = (
    "They had been married for twenty [MASK].",
    "He took his hat and went out of the [MASK].",
    "She looked at her [MASK] with tears in her eyes.",
    "The ship sailed from the [MASK] to the island.",
)
QUERIES = (
    "The machine stood in the laboratory.",
    "It was dark, and I could see nothing.",
    "“How old are you?” she asked.",
)
LENGTHS = range(30, 110)  # Of the sentences, in characters.


def held_out_sentences(books: Path) -> list[str]:
    """Returns the sentences of the held-out books that have a usual length."""
    found = [
        sentence
        for name in PLAN.held_out
        for document in read_documents(str(books / name), Reading("gutenberg"), OddInput())
        for sentence in document
    ]
    return [sentence for sentence in found if len(sentence) in LENGTHS]


def filled(model: Path) -> Iterator[str]:
    """Yields each sentence of MASKED and its most probable tokens."""
    answers = keras_bert.MaskFiller.from_pretrained(model).predict(MASKED)
    for sentence, tokens, scores in zip(MASKED, answers["tokens"], answers["scores"], strict=True):
        pairs = zip(tokens[0], scores[0], strict=True)
        yield sentence
        yield "    " + "  ".join(f"{token} {score:.1%}" for token, score in pairs)


def nearest(model: Path, sentences: list[str]) -> Iterator[str]:
    """Yields each sentence of QUERIES and the three nearest sentences by cosine similarity."""
    embedder = keras_bert.TextEmbedder.from_pretrained(model, max_seq_length=64, normalize=True)
    vectors = embedder.predict(sentences)["mean"]
    for query, vector in zip(QUERIES, embedder.predict(QUERIES)["mean"], strict=True):
        similarities = vectors @ vector
        yield query
        for index in similarities.argsort()[::-1][:3]:
            yield f"    {similarities[index]:.3f}  {sentences[index]}"


def main(_) -> None:
    """Prints the examples."""
    folders = Folders(Path(FLAGS.data_dir), Path(FLAGS.work_dir))
    arm = PLAN.arm(FLAGS.arm)
    if not is_trained(arm, folders):
        sys.exit(f"{run_folder(arm, folders)}: is not trained; run ablation.py --arms={arm.name}")
    model = run_folder(arm, folders) / "model"
    print("\n".join(filled(model)))
    sentences = held_out_sentences(folders.data / "corpus/gutenberg-85")
    print(f"\nNearest of {len(sentences):,} sentences:\n" + "\n".join(nearest(model, sentences)))


if __name__ == "__main__":
    app.run(main)
