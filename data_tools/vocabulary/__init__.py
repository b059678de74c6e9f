"""Learns and extends vocabularies based on words and their counts."""
