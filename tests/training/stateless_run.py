"""Trains by `stateless_apply` on the backend of KERAS_BACKEND; prints distances to the reference.

test_optimizers.py starts it in a separate process, since a process has one backend.
"""

import json
import sys

import numpy as np
import reference
from keras import ops

distances = {}
for rule in ("adamw", "adamw_corrected", "lamb"):
    model, optimizer = reference.build(rule)
    weights = [ops.convert_to_tensor(w) for w in reference.start()]
    state = [v.value for v in optimizer.variables]
    for ids, targets in reference.batches():
        now = [ops.convert_to_numpy(w) for w in weights]
        grads = [
            ops.convert_to_tensor(np.asarray(g, "float32"))
            for g in reference.gradients(now, ids, targets)
        ]
        weights, state = optimizer.stateless_apply(state, reference.clipped(grads), weights)
    final = [ops.convert_to_numpy(w) for w in weights]
    distances[rule] = reference.distance(final, reference.train(rule))
distances["tensorflow_imported"] = "tensorflow" in sys.modules
print(json.dumps(distances))
