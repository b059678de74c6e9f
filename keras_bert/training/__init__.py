"""Trains and evaluates models: devices, training steps, checkpoints and metrics of a run.

cluster.py, strategy.py     workers and devices; distributed batches
objective.py                settings, losses, the state and the metrics of a step, its throughput
optimizers.py               the optimizers, clipping, loss scale; warm-up and decay
backend.py                  the step: TensorFlow (step, strategy), JAX (jax_*), torch
evaluate.py                 evaluation with TensorFlow and JAX, prediction on all backends
loop.py                     steps -> log line, evaluation, checkpoint; or Keras callbacks of `fit`
run_folder.py               the directory of a run, locked and recorded
log.py                      progress, rates, TensorBoard, metrics.jsonl
checkpoint.py               weights, optimizer state and step, written atomically
"""
