"""Fill-mask: predicts masked tokens."""
