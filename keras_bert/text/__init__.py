"""Turns text into model inputs, with TensorFlow operations.

normalization.py   cleans text, splits it at punctuation and CJK characters
vocabulary.py      the tokens of a vocabulary
settings.py        the settings of the tokenizer, and the tokens that are never split
tokenizer.py       texts to token ids, with offsets.py the positions of tokens in texts
windows.py         long texts, contexts and sentences to windows of tokens
padding.py         tokens to [CLS] a [SEP] b [SEP], truncated
unknown_words.py   warns if many words are not in the vocabulary
"""
