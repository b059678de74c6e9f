"""Question answering by spans of contexts, as in SQuAD."""
