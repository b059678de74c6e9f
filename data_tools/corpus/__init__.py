"""The corpus: files in, documents of sentences out."""
