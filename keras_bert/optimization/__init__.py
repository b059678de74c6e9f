"""Optimizers AdamWeightDecay and Lamb, their schedule, and clipping by the global norm.

Written with keras and keras.ops only, so it runs on the TensorFlow, JAX and torch backends.
"""
