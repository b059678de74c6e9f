"""Pre-training: records in; an encoder with both heads, its figures and checkpoints out."""
