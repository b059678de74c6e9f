"""Provides to all other packages: errors, file access, locks, random bits, Ctrl-C handling."""
