"""Trains and predicts from tables of pandas and datasets, and prints the results for each form.

.peers/bin/python tests/tasks/use_tables.py MODEL_DIR
"""

import json
import sys
from typing import Any

import datasets
import keras
import numpy as np
import pandas as pd

import keras_bert

TEXTS = ["good film", "bad book", "very good", "it is bad"]
OTHERS = ["a film", "it is", "a book", "very very"]
LABELS = ["pos", "neg", "pos", "neg"]
WORDS = [text.split() for text in TEXTS]
TAGS = [["B-A" if word in ("film", "book") else "O" for word in words] for words in WORDS]
ANSWERS = [{"text": [words[0]], "answer_start": [0]} for words in WORDS[:3]]
ANSWERS += [{"text": [], "answer_start": []}]
OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 4, "verbose": 0}


def dataset(columns: dict[str, list], **classes: Any) -> datasets.Dataset:
    """Returns a dataset, some of whose columns have numbers and the names of their classes."""
    made = datasets.Dataset.from_dict(columns)
    return made.cast(datasets.Features({**made.features, **classes}))


def plain(values: Any) -> Any:
    """Converts arrays to lists."""
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    return values.tolist() if isinstance(values, np.ndarray) else values


def results(model_dir: str, form: str) -> dict[str, Any]:
    """Returns what each task learns and predicts from data in a form."""
    classes = datasets.ClassLabel(names=["neg", "pos"])
    ids = [classes.str2int(label) for label in LABELS]
    reviews = {"review": TEXTS, "other": OTHERS, "stars": LABELS}
    tagged = {"tokens": WORDS, "ner_tags": TAGS}
    questions = {"question": TEXTS, "context": TEXTS, "answers": ANSWERS}
    tables: dict[str, Any] = {"reviews": reviews, "tagged": tagged, "questions": questions}
    if form == "pandas":
        # The index does not start at 0.
        tables = {k: pd.DataFrame(v, index=range(7, 11)) for k, v in tables.items()}
    elif form != "lists":
        tags = ["O", "B-A", "I-A"]
        tag_ids = [[tags.index(tag) for tag in row] for row in TAGS]
        tables = {
            "reviews": dataset(reviews | {"stars": ids}, stars=classes),
            "tagged": dataset(
                tagged | {"ner_tags": tag_ids},
                ner_tags=datasets.List(datasets.ClassLabel(names=tags)),
            ),
            "questions": dataset(questions),
        }
        if form == "arrays":
            tables = {name: table.with_format("numpy") for name, table in tables.items()}
    is_list = form == "lists"
    found: dict[str, Any] = {}

    keras.utils.set_random_seed(0)
    classifier = keras_bert.TextClassifier.from_pretrained(model_dir, labels=["neg", "pos"])
    data, names = (tables["reviews"],), {"text": ("review", "other"), "label": "stars"}
    columns: Any = tables["reviews"]["review"]
    pairs = ((TEXTS, OTHERS),) if is_list else data
    held_out = (*pairs, LABELS) if is_list else data[0]
    arguments = (*pairs, LABELS) if is_list else pairs
    names = {} if is_list else names
    fitted = classifier.fit(*arguments, **names, validation_data=held_out, **OPTIONS)
    names.pop("label", None)
    found["classifier"] = [
        fitted.history,
        classifier.predict(*pairs, **names),
        classifier.predict(columns),
        classifier.predict([*zip(TEXTS, OTHERS, strict=True)]),
    ]

    tagger = keras_bert.EntityTagger.from_pretrained(model_dir, labels=["A"], max_seq_length=16)
    data = (WORDS, TAGS) if is_list else (tables["tagged"],)
    names = {} if is_list else {"text": "tokens", "label": "ner_tags"}
    found["tagger"] = tagger.evaluate(*data, **names)

    answerer = keras_bert.QuestionAnswerer.from_pretrained(
        model_dir, max_seq_length=24, max_query_length=8
    )
    data = (TEXTS, TEXTS, ANSWERS) if is_list else (tables["questions"],)
    found["answerer"] = [
        answerer.fit(*data, **OPTIONS).history,
        answerer.evaluate(*data),
        answerer.predict(*data[:2])["answer"],
    ]

    embedder = keras_bert.TextEmbedder.from_pretrained(model_dir)
    data, names = (((TEXTS, OTHERS),), {}) if is_list else ((tables["reviews"],), {})
    names = {} if is_list else {"text": ("review", "other")}
    found["embedder"] = embedder.evaluate(*data, **names)
    return found


if __name__ == "__main__":
    for form in ("lists", "pandas", "datasets", "arrays"):
        print(json.dumps(results(sys.argv[1], form), default=plain))
    frame = pd.DataFrame({"review": [*TEXTS, None], "stars": [*LABELS, "neg"]})
    classifier = keras_bert.TextClassifier.from_pretrained(sys.argv[1], labels=["neg", "pos"])
    reviews = dataset({"text": TEXTS, "label": LABELS})
    for arguments, names in (
        ((frame,), {"text": "review", "label": "stars"}),
        ((frame,), {"text": "review", "label": "star"}),
        ((frame, "stars"), {}),
        ((frame["review"], frame["stars"]), {}),
        ((TEXTS, LABELS), {"validation_data": frame}),
        ((TEXTS, frame), {}),
        ((datasets.DatasetDict(train=reviews),), {}),
        ((reviews.to_iterable_dataset(),), {}),
    ):
        try:
            classifier.fit(*arguments, **names)
        except ValueError as error:
            print(error)
