"""Feature extraction: hidden states of chosen layers, without training."""
