"""Extractive question answering, as in SQuAD."""
