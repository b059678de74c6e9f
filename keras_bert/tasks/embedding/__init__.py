"""Sentence vectors."""
