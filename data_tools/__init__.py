"""Offline tools that turn text into TFRecords: corpora, vocabularies, pre-training examples."""
