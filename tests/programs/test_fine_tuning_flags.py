"""Tests that the flags of fine-tuning have the defaults of the API."""

import importlib

import pytest

from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.options import declared
from keras_bert.tasks import fitting
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller
from keras_bert.tasks.fitting import fit_task
from keras_bert.tasks.ner.task import EntityTagger
from keras_bert.tasks.question_answering.task import QuestionAnswerer

FLAG_NAMES = {
    "epochs": "num_train_epochs",
    "batch_size": "train_batch_size",
    "seed": "random_seed",
}
# Settings of the task objects that the flags have in the same form.
SAME_FORM = ("max_seq_length", "max_query_length", "doc_stride", "n_best_size")
SAME_FORM += ("max_answer_length", "version_2_with_negative", "problem_type")
TEXTS, SPAN = ["good film", "bad film"] * 2, {"text": "good", "start": 0}
# {program: (the task class, arguments of from_pretrained, arguments of fit)}
TASKS = {
    "classify": (TextClassifier, {"labels": ["a", "b"]}, (TEXTS, ["a", "b"] * 2)),
    "squad": (QuestionAnswerer, {}, (["is it"] * 2, ["good film"] * 2, [SPAN] * 2)),
    "ner": (EntityTagger, {"labels": ["X"]}, ([["good", "film"]] * 2, [["B-X", "O"]] * 2)),
    "embed": (TextEmbedder, {}, ((TEXTS[:2], ["very good", "very bad"]),)),
    "adapt": (MaskFiller, {}, (TEXTS,)),
}


@pytest.fixture(scope="module")
def long_checkpoint(make_checkpoint, tmp_path_factory):
    """Returns a model with enough positions for the default length of each task."""
    folder = tmp_path_factory.mktemp("long") / "model"
    return make_checkpoint(folder, ["good", "bad", "film"], max_position_embeddings=512)


@pytest.mark.parametrize("program", TASKS)
def test_fit_has_the_defaults_of_the_program_of_its_task(program, long_checkpoint, monkeypatch):
    kind, arguments, examples = TASKS[program]
    calls = []
    monkeypatch.setattr(fitting, "train_with_callbacks", lambda *_: None)
    monkeypatch.setattr(
        f"{kind.__module__}.fit_task", lambda *values: calls.append(values) or fit_task(*values)
    )
    task = kind.from_pretrained(long_checkpoint, **arguments)
    task.fit(*examples)
    ((_, _, _, settings, *_),) = calls
    used = vars(settings) | {n: v for n, v in vars(task.settings).items() if n in SAME_FORM}
    if program != "adapt":  # It trains for thousands of steps, where the bias does not matter.
        used["bias_correction"] = task.trainer.state.optimizer.bias_correction
    used |= {"scale": EmbeddingLoss("mnrl").scale} if program == "embed" else {}
    flags = importlib.import_module(PROGRAMS[program][0]).PROGRAM.flags()
    defaults = {name: option.default for name, option in declared(flags).items()}
    del defaults["jit_compile"]  # It changes only the speed.
    found = {name: used[name] for name in used if FLAG_NAMES.get(name, name) in defaults}
    assert found == {name: defaults[FLAG_NAMES.get(name, name)] for name in found}
    assert len(found) >= (5 if program == "adapt" else 8), found
