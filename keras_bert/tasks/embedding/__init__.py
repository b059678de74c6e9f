"""Text embeddings: vectors of texts, trained on pairs, triplets or scored pairs.

data.py         settings; examples of files and arguments, with their checks
processor.py    texts to tokens, hidden states to vectors
losses.py       the losses of a batch of vectors, the training objective
search.py       cosines, the exact search in blocks, scores; hard negatives: the nearest other texts
task.py         TextEmbedder, its export, its fine-tuning on the files of a run
"""
