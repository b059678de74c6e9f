"""Named-entity recognition: from CoNLL column files to a tagger, its predictions and scores."""
