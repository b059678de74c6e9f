"""Text to TFRecords, offline: vocabularies, corpora, pre-training examples."""
