"""The TFRecord format of pre-training data: finding files, and masking."""
