"""The training loop: strategy, training step, evaluation, checkpoints and summaries."""
