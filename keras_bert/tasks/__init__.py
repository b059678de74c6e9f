"""The tasks: texts to tokens, training, answers, exports.

TASK/           data.py (files and arguments) -> processor.py (texts to tokens, outputs to
                answers); metrics.py (objective, scores); task.py (the class, its runs)
prepared.py     texts of a whole dataset -> examples, outputs -> answers
text_processor.py   the processor of the tasks that answer once per text; long texts
examples.py     examples -> batches -> model -> outputs in the order of the examples
retrieval.py    BEIR directories; nDCG, MRR and MAP of the rankings of an embedder or a reranker
task.py         Task, the base class: load, fit, predict, save, export
fitting.py      `fit`: the loop of training/ with Keras callbacks; teachers
load.py         model directories and exports -> task objects
model_export.py model directories and runs -> exports
fine_tuning.py  the runs of the programs: the same loop with files and best weights
"""

# Task -> module and name of its class.
CLASSES = {
    "classification": ("keras_bert.tasks.classification.task", "TextClassifier"),
    "question_answering": ("keras_bert.tasks.question_answering.task", "QuestionAnswerer"),
    "ner": ("keras_bert.tasks.ner.task", "EntityTagger"),
    "fill_mask": ("keras_bert.tasks.fill_mask", "MaskFiller"),
    "embedding": ("keras_bert.tasks.embedding.task", "TextEmbedder"),
}
