"""Implements the task objects, pre-training, fine-tuning, export and feature extraction."""
