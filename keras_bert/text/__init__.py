"""Turns text into model inputs: normalization, tokenization, vocabulary, padding."""
