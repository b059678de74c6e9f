"""Pre-training of an encoder and its heads on TFRecords."""
