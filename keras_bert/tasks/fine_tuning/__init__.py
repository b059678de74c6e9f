"""Fine-tunes and evaluates a model, whatever the task."""
