"""Tasks: reading, features, loss and score of pre-training and fine-tuning."""
