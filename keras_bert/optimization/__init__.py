"""Provides the optimizers and their schedule, on keras.ops: they run on TensorFlow, JAX and torch.

schedules.py    step -> learning rate
optimizers.py   gradients -> clipping -> AdamWeightDecay or Lamb; the loss scale of float16
"""
