"""Predicts the tokens for [MASK]."""
