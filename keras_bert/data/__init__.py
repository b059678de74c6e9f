"""Reads pre-training data from TFRecord files, and masks tokens."""
