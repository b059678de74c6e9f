"""`fit` and the program of the same task end with the same weights, bit for bit."""

import json

import numpy as np
import pytest

from keras_bert.checkpoints.weights import weights_of
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.load import load
from keras_bert.tasks.ner.task import EntityTagger
from keras_bert.tasks.question_answering.task import QuestionAnswerer

pytestmark = pytest.mark.slow
# 21 texts of 4 to 8 tokens, so that the last of six batches is smaller than the others.
TEXTS = [
    f"{'very ' * (i * 5 % 2)}{('bad', 'good')[i % 2]} {('film', 'book')[i % 3 % 2]}"
    f"{' it is .' * (i % 2)}"
    for i in range(21)
]
PAIRED = [f"it is {'a ' * (i % 4)}{('book', 'film')[i % 2]} {'is ' * (i // 6)}" for i in range(21)]
# {argument of fit: (flag of the programs, value)}
SETTINGS = {
    "epochs": ("num_train_epochs", 2),
    "batch_size": ("train_batch_size", 4),
    "learning_rate": ("learning_rate", 5e-3),
    "warmup_proportion": ("warmup_proportion", 0.3),
    "weight_decay": ("weight_decay", 0.1),
    "seed": ("random_seed", 7),
}


@pytest.fixture
def compare(run_program, pretrained, tmp_path):
    """Returns a function that trains with a program and with `fit`, and compares the weights.

    `options` are arguments of `fit`, `flags` those of the program, and `both` have the same names.
    """

    def run(program, task_object, data, *, options=None, both=None, **flags):
        done = run_program(
            program,
            *("--nojit_compile", f"--do_eval={bool(flags.get('eval_file'))}", "--nodo_predict"),
            init_checkpoint=pretrained,
            output_dir=tmp_path / "out",
            max_seq_length=task_object.settings.max_seq_length,
            **dict(SETTINGS.values()),
            **{"mixed_precision": "float32", **(both or {}), **flags},
        )
        assert done.returncode == 0, done.stderr
        before = weights_of(task_object.model)
        values = {name: value for name, (_, value) in SETTINGS.items()}
        task_object.fit(
            *data, verbose=0, jit_compile=False, **values, **(both or {}), **(options or {})
        )
        expected = weights_of(load(tmp_path / "out" / "model").model)
        changed = False
        for path, found in weights_of(task_object.model).items():
            np.testing.assert_array_equal(found, expected[path], err_msg=path)
            changed |= "layer_0" in path and np.abs(found - before[path]).max() > 1e-5
        assert changed
        if "teacher" in flags:
            lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
            for row in [row for row in map(json.loads, lines) if "loss" in row]:
                assert row["loss"] == pytest.approx(row["label_loss"] + row["soft_loss"])
                assert min(row["label_loss"], row["soft_loss"]) > 0
        shown = json.loads((tmp_path / "out" / "examples.json").read_text())["texts"]
        assert len(shown) == 3
        assert shown == task_object.shown

    return run


def write_rows(path, **columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_teacher(create, folder):
    """Returns the arguments of `compare` for a teacher with a new head."""
    teacher = create()
    teacher.untrained = ()
    teacher.save_pretrained(folder)
    both = {"distillation_weight": 0.5, "temperature": 2.0}
    return {"options": {"teacher": teacher}, "both": both, "teacher": folder}


def test_classifiers_with_a_teacher(compare, pretrained, tmp_path):
    labels = [("a", "b", "c")[i % 3] for i in range(21)]
    create = lambda: TextClassifier.from_pretrained(pretrained, ["a", "b", "c"], 24)  # noqa: E731
    compare(
        "run_classifier.py",
        create(),
        ((TEXTS, PAIRED), labels),
        task_name="custom",
        train_file=write_rows(tmp_path / "train.jsonl", text=TEXTS, pair=PAIRED, label=labels),
        columns="text_pair=pair",
        **with_teacher(create, tmp_path / "teacher"),
    )


@pytest.mark.parametrize(
    "both",
    [
        {"layer_decay": 0.5, "gradient_accumulation_steps": 2, "class_weights": "balanced"},
        {"mixed_precision": "bfloat16"},
    ],
)
def test_options_of_programs_and_the_best_weights(compare, pretrained, tmp_path, both):
    labels = [("a", "a", "b")[i % 3] for i in range(21)]
    classifier = TextClassifier.from_pretrained(pretrained, ["a", "b"], 24)
    file = write_rows(tmp_path / "train.jsonl", text=TEXTS, label=labels)
    held_out = (PAIRED, labels)
    compare(
        "run_classifier.py",
        classifier,
        (TEXTS, labels),
        options={"validation_data": held_out, "restore_best": True},
        both=both,
        task_name="custom",
        train_file=file,
        eval_file=write_rows(tmp_path / "dev.jsonl", text=PAIRED, label=labels),
    )


def test_taggers_with_a_teacher(compare, pretrained, tmp_path):
    words = [text.split() for text in TEXTS]
    # The last words are not labeled.
    tags = [["B-X" if word in ("good", "film") else "O" for word in row[:-1]] for row in words]
    tags = [[*row, "-"] for row in tags]
    sentences = [zip(*row, strict=True) for row in zip(words, tags, strict=True)]
    file = tmp_path / "train.conll"
    file.write_text(
        "\n".join("".join(f"{word}\t{tag}\n" for word, tag in row) for row in sentences)
    )
    # Some texts have two windows.
    create = lambda: EntityTagger.from_pretrained(pretrained, ["X"], 8)  # noqa: E731
    teacher = with_teacher(create, tmp_path / "teacher")
    compare("run_ner.py", create(), (words, tags), train_file=file, **teacher)


def test_question_answerers_with_a_teacher(compare, pretrained, tmp_path):
    sizes = {"max_query_length": 8, "doc_stride": 4}
    questions = [f"is it {'a ' * (i % 3)}book" for i in range(21)]
    answers = [{"text": text.split()[-1], "start": text.rindex(text.split()[-1])} for text in TEXTS]
    columns = {"id": [*map(str, range(21))], "question": questions, "context": TEXTS}
    columns["answers"] = [{"text": [a["text"]], "answer_start": [a["start"]]} for a in answers]
    file = write_rows(tmp_path / "train.jsonl", **columns)
    create = lambda: QuestionAnswerer.from_pretrained(  # noqa: E731
        pretrained, max_seq_length=16, **sizes
    )
    teacher = with_teacher(create, tmp_path / "teacher")
    data = (questions, TEXTS, answers)
    compare("run_squad.py", create(), data, train_file=file, **sizes, **teacher)


def test_embedders(compare, pretrained, tmp_path):
    compare(
        "run_embedding.py",
        TextEmbedder.from_pretrained(pretrained, 16),
        ((TEXTS, PAIRED),),
        both={"loss": "mnrl", "gradient_accumulation_steps": 2},
        train_file=write_rows(tmp_path / "train.jsonl", anchor=TEXTS, positive=PAIRED),
    )
