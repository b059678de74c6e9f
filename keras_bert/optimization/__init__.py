"""Provides the optimizers AdamWeightDecay and Lamb, schedules, clipping and loss scaling.

All of them use only keras and keras.ops, so they run on TensorFlow, JAX and torch.
"""
