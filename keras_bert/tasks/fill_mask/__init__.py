"""Mask filling."""
