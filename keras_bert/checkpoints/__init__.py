"""Models on disk: Hugging Face directories, and the names that weights have there."""
