"""Prepares data offline: reads corpora, learns vocabularies and creates pre-training examples."""
