"""Vocabularies: words and their counts in, word pieces out."""
