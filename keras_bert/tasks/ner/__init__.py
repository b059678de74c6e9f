"""Named-entity recognition, with CoNLL column files or strings."""
