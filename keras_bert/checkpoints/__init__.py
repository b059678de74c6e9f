"""Reads, writes and converts checkpoints: Hugging Face directories, TF1 and KerasHub files."""
