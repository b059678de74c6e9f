"""Extractive question answering, with SQuAD files or strings.

data.py         settings; questions of files, TensorFlow Datasets and arguments
processor.py    questions and contexts to windows, examples; logits to answers and their files
metrics.py      the training objective, official scores
task.py         QuestionAnswerer, its export, its fine-tuning on the files of a run
"""
