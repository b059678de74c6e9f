"""Reads record files for statistics and readable text."""
