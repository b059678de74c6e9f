"""Pre-training of an encoder with its heads on TFRecords."""
