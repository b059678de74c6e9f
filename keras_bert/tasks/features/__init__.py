"""Computes features: hidden states of chosen layers, without training."""
