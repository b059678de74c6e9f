"""Named-entity recognition, with CoNLL column files or strings.

tag_schemes.py    tags of words in any scheme, entities and their scores, the labels of a model
data.py           the sentences of a run: column files, texts with entities, TensorFlow Datasets
processor.py      texts to words, words to windows of tokens, examples; logits to entities or tags
task.py           EntityTagger, its objective, its export, its fine-tuning on the files of a run
"""
