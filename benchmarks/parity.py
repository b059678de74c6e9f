"""Compares the answers of the programs, of the Python API and of exported models.

    .venv/bin/python benchmarks/parity.py [--work_dir=/tmp/parity]

Fine-tunes MiniLM in float32 for one epoch on MRPC and on SQuAD's format (xquad.en) and for three
epochs on WNUT-17, and exports each model. Each model then answers in three ways:

- program: the prediction files of run_squad.py, run_classifier.py and run_ner.py;
- API: `keras_bert.load(RUN).predict`;
- export: `keras_bert.load(RUN/export/1).predict`, which calls the signatures of the SavedModel.

The data are all questions of XQuAD in English, German and Chinese (3,570), the pairs of MRPC's
development set (408), and the sentences of WNUT-17's test set. The tables show how many values
differ for strings and integers, and the largest difference for numbers. Finished runs in --work_dir
are not repeated.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import app, flags
from workers import MODEL, ROOT

sys.path.insert(0, str(ROOT))
DATA = ROOT.parent / "shared" / "data"
LANGUAGES = ("en", "de", "zh")
LIMIT = 1e-5  # of the difference of two numbers

flags.DEFINE_string("work_dir", "/tmp/parity", "folder of the runs")
FLAGS = flags.FLAGS


def run(program: str, folder: Path, **settings: object) -> Path:
    """Runs a program of the project in float32, and returns its output folder."""
    flag_values = {"output_dir": folder, "mixed_precision": "float32"} | settings
    command = [
        sys.executable,
        str(ROOT / program),
        *(f"--{k}={v}" for k, v in flag_values.items()),
    ]
    with open(folder.with_suffix(".log"), "a") as log:
        subprocess.run(command, cwd=ROOT, stderr=log, stdout=log, check=True)
    return folder


def compare(name: str, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Prints a row for each output of two results, and returns whether they agree.

    Results without any values, such as entities, do not count as agreement.
    """
    agree = True
    for output in one:
        count, different, largest = 0, 0, 0.0
        for mine, theirs in zip(flat(one[output]), flat(other[output]), strict=True):
            count += 1
            if isinstance(mine, float):
                largest = max(largest, abs(mine - theirs))
            else:
                different += mine != theirs
        agree = agree and count > 0 and not different and largest <= LIMIT
        print(f"| {name} | {output} | {count:,} | {different} | {largest:.1e} |")
    return agree


def flat(values: object) -> Iterable[str | int | float]:
    """Yields the values of nested lists and arrays as Python objects."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        for value in values:
            yield from flat(value)
    else:
        yield values.decode() if isinstance(values, bytes) else values


def questions_agree(work: Path) -> bool:
    """Compares the answers to all questions of XQuAD in three languages."""
    import keras_bert
    from keras_bert.tasks.question_answering.data import load_questions

    files = {language: DATA / "squad" / f"xquad.{language}.json" for language in LANGUAGES}
    train = {"init_checkpoint": MODEL, "train_file": files["en"], "num_train_epochs": 1}
    trained = run("run_squad.py", work / "squad", do_eval=False, export=True, **train)
    api, export = keras_bert.load(trained), keras_bert.load(trained / "export" / "1")
    agree = True
    for language, file in files.items():
        folder = run(
            "run_squad.py",
            work / f"squad_{language}",
            init_checkpoint=trained,
            do_train=False,
            eval_file=file,
        )
        questions = load_questions(file)
        columns = [q.text for q in questions], [q.context for q in questions]
        mine, exported = sorted_candidates(api.predict(*columns)), export.predict(*columns)
        agree &= compare(f"XQuAD {language}, API and export", mine, sorted_candidates(exported))
        agree &= compare(
            f"XQuAD {language}, program and API", *file_and_api(folder, questions, mine)
        )
    return agree


def sorted_candidates(predictions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sorts the candidates of each question by position.

    Two candidates whose probabilities differ by 1e-7 may have another order elsewhere.
    """
    order = np.lexsort((predictions["nbest_ends"], predictions["nbest_starts"]), axis=1)
    return {
        name: np.take_along_axis(np.asarray(values), order, axis=1)
        if name.startswith("nbest_")
        else values
        for name, values in predictions.items()
    }


def file_and_api(
    folder: Path, questions: Sequence, predictions: Mapping[str, np.ndarray]
) -> tuple[dict[str, list], dict[str, list]]:
    """Returns the content of SQuAD's prediction files, and the same values from the API."""
    answers = json.loads((folder / "predictions.json").read_text("utf-8"))
    candidates = json.loads((folder / "nbest_predictions.json").read_text("utf-8"))
    written = {"answer": [], "text": [], "probability": [], "start_logit": []}
    from_api = {name: [] for name in written}
    columns = [
        predictions[f"nbest_{name}"] for name in ("answers", "probabilities", "start_logits")
    ]
    for row, question in enumerate(questions):
        written["answer"].append(answers[question.id])
        from_api["answer"].append(str(predictions["answer"][row]))
        ours = sorted(zip(*(np.asarray(column[row]).tolist() for column in columns), strict=True))
        names = ("text", "probability", "start_logit")
        theirs = sorted(tuple(each[name] for name in names) for each in candidates[question.id])
        for index, name in enumerate(names):
            from_api[name].append([one[index] for one in ours[-len(theirs) :]])
            written[name].append([one[index] for one in theirs])
    return written, from_api


def pairs_agree(work: Path) -> bool:
    """Compares the labels and probabilities of MRPC's development set."""
    import keras_bert

    trained = run(
        "run_classifier.py",
        work / "mrpc",
        task_name="custom",
        init_checkpoint=MODEL,
        train_file=DATA / "glue/MRPC/train.tsv",
        eval_file=DATA / "glue/MRPC/dev.tsv",
        columns="text=#1 String,text_pair=#2 String,label=Quality",
        num_train_epochs=1,
        export=True,
    )
    lines = (DATA / "glue/MRPC/dev.tsv").read_text("utf-8-sig").splitlines()[1:]
    columns = tuple([line.split("\t")[column] for line in lines] for column in (3, 4))
    mine = keras_bert.load(trained).predict(columns)
    exported = keras_bert.load(trained / "export" / "1").predict(columns)
    rows = [json.loads(line) for line in (trained / "predictions.jsonl").open(encoding="utf-8")]
    written = {
        "label": [row["prediction"] for row in rows],
        "probabilities": [list(row["probabilities"].values()) for row in rows],
    }
    agree = compare("MRPC, API and export", mine, exported)
    return compare("MRPC, program and API", written, mine) and agree


def sentences_agree(work: Path) -> bool:
    """Compares the tags and entities of WNUT-17's test set."""
    import keras_bert
    from keras_bert.tasks.ner.data import read_conll

    folder = DATA / "ner" / "wnut17"
    trained = run(
        "run_ner.py",
        work / "wnut",
        init_checkpoint=MODEL,
        train_file=folder / "wnut17train.conll",
        eval_file=folder / "emerging.dev.conll",
        predict_file=folder / "emerging.test.annotated",
        num_train_epochs=3,
        export=True,
    )
    words = [list(sentence.words) for sentence in read_conll(folder / "emerging.test.annotated")]
    api, export = keras_bert.load(trained), keras_bert.load(trained / "export" / "1")
    mine, exported = api.predict(words), export.predict(words)
    written = {"tags": [s.tags for s in read_conll(trained / "predictions.conll")]}
    agree = compare("WNUT-17 words, API and export", mine, exported)
    agree &= compare("WNUT-17 words, program and API", written, mine)
    texts = [" ".join(sentence) for sentence in words]
    return compare("WNUT-17 texts, API and export", api.predict(texts), export.predict(texts)) & (
        agree
    )


def main(_) -> None:
    """Runs the three comparisons; exits with code 1 if any value differs by more than the limit."""
    work = Path(FLAGS.work_dir)
    work.mkdir(parents=True, exist_ok=True)
    print("| data and ways | output | values | different | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    agree = [compared(work) for compared in (pairs_agree, sentences_agree, questions_agree)]
    if not all(agree):
        sys.exit(f"some values differ by more than {LIMIT}, or an output has no values")


if __name__ == "__main__":
    app.run(main)
