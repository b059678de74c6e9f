"""How weights move: AdamWeightDecay and Lamb, their schedule, and clipping by the global norm.

Written with keras and keras.ops only, so it runs on the TensorFlow, JAX and torch backends.
"""

from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.clipping import clip_by_global_norm
from keras_bert.optimization.dense import densify
from keras_bert.optimization.lamb import Lamb
from keras_bert.optimization.schedules import LinearWarmupDecay

__all__ = ["AdamWeightDecay", "Lamb", "LinearWarmupDecay", "clip_by_global_norm", "densify"]
