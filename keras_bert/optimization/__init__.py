"""The optimizers AdamWeightDecay and Lamb, learning-rate schedules, clipping and loss scaling.

All of them use only keras and keras.ops, so they run on the TensorFlow, JAX and torch backends.
"""
