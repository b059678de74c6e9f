"""Makes records of masked tokens from tokenized documents."""
