"""Fine-tuning and evaluation, shared by all tasks."""
