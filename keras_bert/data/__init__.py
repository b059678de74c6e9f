"""Reads pre-training data from TFRecord files, and masks tokens.

record_files.py   --input_file -> record files by folder, with their manifests
records.py        record files -> format, shape, counts; serialized records -> batch
masking.py        batch -> masked tokens to predict
"""
