"""Extractive question answering, with SQuAD files or strings.

data.py         settings; questions of files, TensorFlow Datasets and arguments
processor.py    questions and contexts to windows of tokens, examples
metrics.py      the training objective, official scores
decoding.py     logits to the best spans, answers and prediction files
task.py         QuestionAnswerer, its export, its fine-tuning on the files of a run
"""
