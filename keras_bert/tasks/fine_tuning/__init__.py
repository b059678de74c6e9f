"""Fine-tuning, whatever the task: tokenized examples in; trained weights and outputs out."""
