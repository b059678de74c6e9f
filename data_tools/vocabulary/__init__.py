"""Learns and extends vocabularies from words and their counts."""
