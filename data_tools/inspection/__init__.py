"""Reads record files, and computes statistics and readable text."""
