"""Named-entity recognition: CoNLL column files in; a tagger, its predictions and scores out."""
