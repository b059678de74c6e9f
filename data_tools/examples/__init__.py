"""Creates pre-training examples and TFRecords from tokenized documents."""
