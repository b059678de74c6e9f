"""The one training loop: strategy, step, checkpoint, summaries."""
