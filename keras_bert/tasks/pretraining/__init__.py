"""Pre-trains an encoder and its heads on TFRecords."""
