"""Named-entity recognition, with CoNLL column files or strings.

tag_schemes.py    tags of words in any scheme, entities, the labels of a model
span_records.py   annotated texts of JSON and Parquet files, their spans as tags of words
data.py           the sentences of a run: column files, span_records.py, TensorFlow Datasets
processor.py      texts to words, words to windows of tokens, examples
metrics.py        the training objective, entity scores
decoding.py       the label of each word to entities or tags
task.py           EntityTagger, its export, its fine-tuning on the files of a run
"""
