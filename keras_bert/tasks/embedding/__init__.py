"""Converts texts to embeddings."""
