"""Helpers for all other packages: errors, files, locks, random bits, text files."""
