"""Reads corpus files as documents of sentences."""
