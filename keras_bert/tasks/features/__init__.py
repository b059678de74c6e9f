"""Extracts the hidden states of chosen layers, without training."""
