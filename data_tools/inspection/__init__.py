"""Reads and verifies record files, computes statistics and formats examples as text."""
