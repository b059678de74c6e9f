"""Reads SQuAD datasets that TensorFlow Datasets has prepared."""

from keras_bert.tasks.prepared_tfds import open_prepared, read_split
from keras_bert.tasks.question_answering.questions import Answer, Question, check_ids


def read_tfds(version: str, split: str, data_dir: str = "") -> list[Question]:
    """Reads the questions of a SQuAD split.

    `version` is "v1.1" or "v2.0", and `split` is "train" or "validation". An empty `data_dir` means
    TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    builder = open_prepared(f"squad/{version}", data_dir)
    contexts: dict[str, str] = {}
    questions = [_question(row, contexts) for row in read_split(builder, split)]
    check_ids(questions, f"{builder.data_path}, split {split}")
    return questions


def _question(row: dict, contexts: dict[str, str]) -> Question:
    context = row["context"].decode()
    answers = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
    return Question(
        row["id"].decode(),
        row["question"].decode(),
        contexts.setdefault(context, context),  # One string for all of its questions.
        tuple(Answer(text.decode(), int(start)) for text, start in answers if text.strip()),
    )
