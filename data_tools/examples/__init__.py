"""Creates pre-training examples from tokenized documents, and encodes them as TFRecords."""
