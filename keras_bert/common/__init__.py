"""Provides errors, atomic files, locks, random bits and text files to all other packages."""
