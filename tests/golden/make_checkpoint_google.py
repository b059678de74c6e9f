"""Runs Google's modeling code, with both heads, on a TF1 checkpoint and stores the outputs.

    .peers/bin/python tests/golden/make_checkpoint_google.py CHECKPOINT_DIR OUT.npz

The input is a directory with bert_config.json and a checkpoint with the prefix bert_model.ckpt.
The output is a batch and the results of `bert-tensorflow` 1.0.4 for it: sequence_output,
pooled_output, the log probabilities of the masked LM and of the next sentence, and the names of the
weights that were read. tests/golden/checkpoint_google.npz was made from
../shared/data/checkpoints/keras_bert_test_checkpoint.

The package was written for TensorFlow 1. Its two layers that TensorFlow 2 lacks, dense and
layer_norm, are reimplemented here with the same variable names and arithmetic.
"""

import json
import sys
import types
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

LENGTH, POSITIONS = 10, [[1, 3, 8], [2, 4, 0], [1, 0, 0]]


def dense(inputs, units, activation=None, name=None, kernel_initializer=None):
    """TensorFlow 1's tf.layers.dense, for [rows, width] and [batch, length, width]."""
    with tf.variable_scope(name or "dense"):
        shape = [inputs.shape[-1], units]
        kernel = tf.get_variable("kernel", shape, initializer=kernel_initializer)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        outputs = tf.tensordot(inputs, kernel, 1) + bias
    return activation(outputs) if activation else outputs


def layer_norm(inputs, begin_norm_axis, begin_params_axis, scope=None):
    """TensorFlow 1's contrib.layers.layer_norm over the last axis: epsilon 1e-12."""
    with tf.variable_scope(scope or "LayerNorm"):
        beta = tf.get_variable("beta", inputs.shape[-1:], initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", inputs.shape[-1:], initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [begin_norm_axis], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


def import_google():
    """Imports the package with the two reimplemented layers."""
    tf.layers = types.SimpleNamespace(dense=dense)
    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = types.SimpleNamespace(layer_norm=layer_norm)
    for name in ("cluster_resolver", "data", "tpu", "training"):
        setattr(contrib, name, types.SimpleNamespace())
    sys.modules["tensorflow.contrib"] = contrib
    from bert import modeling, run_pretraining

    return modeling, run_pretraining


def main(folder: str, out: str) -> None:
    """Builds the graph, fills it from the checkpoint, runs it and saves."""
    modeling, run_pretraining = import_google()
    random = np.random.default_rng(7)
    config = modeling.BertConfig.from_json_file(str(Path(folder, "bert_config.json")))
    mask = (np.arange(LENGTH) < np.array([[10], [7], [4]])).astype(np.int32)
    batch = {
        "input_ids": random.integers(0, config.vocab_size, mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(LENGTH) >= 5).astype(np.int32) * mask,
        "masked_lm_positions": np.array(POSITIONS, np.int32),
    }
    with tf.Graph().as_default(), tf.Session() as session:
        model = modeling.BertModel(
            config,
            is_training=False,
            input_ids=tf.constant(batch["input_ids"]),
            input_mask=tf.constant(mask),
            token_type_ids=tf.constant(batch["segment_ids"]),
        )
        positions = tf.constant(batch["masked_lm_positions"])
        masked_lm = run_pretraining.get_masked_lm_output(
            config,
            model.get_sequence_output(),
            model.get_embedding_table(),
            positions,
            tf.zeros_like(positions),
            tf.ones_like(positions, tf.float32),
        )
        next_sentence = run_pretraining.get_next_sentence_output(
            config, model.get_pooled_output(), tf.zeros([len(mask), 1], tf.int32)
        )
        prefix = str(Path(folder, "bert_model.ckpt"))
        names, _ = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), prefix)
        missing = [v.name for v in tf.trainable_variables() if v.op.name not in names]
        assert not missing, f"not in the checkpoint: {json.dumps(missing)}"
        tf.train.init_from_checkpoint(prefix, names)
        session.run(tf.global_variables_initializer())
        outputs = session.run(
            {
                "sequence_output": model.get_sequence_output(),
                "pooled_output": model.get_pooled_output(),
                "masked_lm_log_probs": masked_lm[2],
                "next_sentence_log_probs": next_sentence[2],
            }
        )
    np.savez_compressed(out, **batch, **outputs, names=sorted(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
