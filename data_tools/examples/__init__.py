"""Examples: tokenized documents in, records of masked pieces out."""
