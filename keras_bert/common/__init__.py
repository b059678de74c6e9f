"""Helpers that every layer uses: errors, files, locks, random bits, text files."""
