"""Fine-tunes and evaluates the models of all tasks."""
