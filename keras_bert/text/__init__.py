"""Text as model inputs: tokenizer, normalization, vocabulary, padding, as graph operations."""
