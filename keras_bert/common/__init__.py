"""Provides errors, file access, locks, random bits and Ctrl-C handling to all other packages."""
