"""Task objects, and the programs' fine-tuning, pre-training, export and feature extraction."""
