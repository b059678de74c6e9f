"""Makes data_google_kjv.json: statistics of Google's data script on the King James Bible.

    python tests/golden/make_data_golden.py ../shared/data

Run it in an environment with TensorFlow 2 and `bert-tensorflow` 1.0.4 (installed with --no-deps),
which only these tests use; keras_bert does not depend on it. The input is the 66 books of the
Bible, separated by blank lines, and the uncased vocabulary. The output is histograms over the
examples, which tests/data_tools/test_shards.py compares with those of keras_bert.
"""

import collections
import json
import random
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

sys.modules["tensorflow"] = tf.compat.v1  # the package was written for TensorFlow 1

from bert import create_pretraining_data, tokenization  # noqa: E402

DUPE_FACTOR, SEEDS = 5, (1, 2)


def measure(corpus: str, vocab_file: Path, seed: int) -> dict:
    """Runs Google's function once and counts properties of the resulting examples."""
    tokenizer = tokenization.FullTokenizer(str(vocab_file), do_lower_case=True)
    made = create_pretraining_data.create_training_instances(
        [corpus], tokenizer, 128, DUPE_FACTOR, 0.1, 0.15, 20, random.Random(seed)
    )
    histograms = collections.defaultdict(collections.Counter)
    for instance in made:
        histograms["length"][len(instance.tokens)] += 1
        histograms["a_length"][instance.segment_ids.index(1) - 2] += 1
        histograms["masked"][len(instance.masked_lm_positions)] += 1
        histograms["random_next"][int(instance.is_random_next)] += 1
        # The lengths of a random B have a different distribution.
        name = "b_length_random" if instance.is_random_next else "b_length_next"
        histograms[name][sum(instance.segment_ids) - 1] += 1
        for position, label in zip(
            instance.masked_lm_positions, instance.masked_lm_labels, strict=True
        ):
            token = instance.tokens[position]
            fate = "mask" if token == "[MASK]" else "kept" if token == label else "random"
            histograms["fate"][fate] += 1
            histograms["position"][position] += 1
    return {
        name: dict(sorted(counter.items(), key=lambda item: str(item[0]).zfill(4)))
        for name, counter in histograms.items()
    }


def main() -> None:
    """Measures under two seeds, so that the noise between them is on record too."""
    tf.compat.v1.flags.FLAGS(sys.argv[:1])  # the package's functions read flags
    data = Path(sys.argv[1])
    books = sorted((data / "corpus/kjv").glob("*.txt"))
    vocab_file = data / "vocab/bert-base-uncased/vocab.txt"
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as corpus:
        corpus.write("\n\n".join(book.read_text(encoding="utf-8") for book in books))
        corpus.flush()
        runs = [measure(corpus.name, vocab_file, seed) for seed in SEEDS]
    golden = {"dupe_factor": DUPE_FACTOR, "seeds": SEEDS, "runs": runs}
    path = Path(__file__).with_name("data_google_kjv.json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
