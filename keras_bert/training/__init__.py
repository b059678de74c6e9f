"""Trains and evaluates models: devices, training steps, checkpoints and metrics of a run.

run.py, run_folder.py       settings of a run; its directory, locked and recorded
cluster.py, strategy.py     workers and devices; distributed batches
objective.py                losses, the state that a step updates, the metrics that it returns
backend.py                  TensorFlow (step, evaluate, strategy) or JAX (jax_step, jax_evaluate)
loop.py                     steps -> log line, evaluation, checkpoint; stops on a signal
log.py, metrics.py          progress, TensorBoard, metrics.jsonl
checkpoint.py               weights, optimizer state and step, written atomically
"""
