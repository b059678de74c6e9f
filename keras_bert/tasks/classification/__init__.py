"""Classification and regression of texts and pairs of texts.

glue.py         the tasks of GLUE: their labels, metrics and files
data.py         settings; examples of a run: glue.py or files (../tables.py); labels as numbers
processor.py    texts to tokens, logits to labels, prediction files; settings of a checkpoint
metrics.py      the training objective, official metrics
task.py         TextClassifier, its export, its fine-tuning on the files of a run
"""
