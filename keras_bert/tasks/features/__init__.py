"""Features of text without training: lines in; hidden states of chosen layers out."""
