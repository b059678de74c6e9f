"""Trains and evaluates models: devices, training steps, checkpoints and metrics."""
