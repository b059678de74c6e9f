"""Fine-tuning with a teacher: its outputs, the bits without it, resuming, and invalid teachers."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.models.encoder import select_inputs
from keras_bert.tasks.classification.metrics import ClassificationObjective
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.fine_tuning import FineTuningRun, open_pretrained
from keras_bert.tasks.fitting import add_teacher_outputs
from keras_bert.tasks.settings import Distillation, FineTuningSettings
from keras_bert.training.objective import NO_OUTPUT, TrainingSettings
from keras_bert.training.strategy import make_strategy
from tests.tasks.fine_tuning.conftest import TOKENS, LabelTask, random_examples

TRAINING = TrainingSettings(num_train_steps=0, train_batch_size=16, jit_compile=False)
EVEN = Distillation(distillation_weight=0.5)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tiny_checkpoint):
    """Returns the folder of a classifier with a random head."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    made = TextClassifier.from_pretrained(tiny_checkpoint, labels=["even", "odd"])
    made.model.classifier.kernel.assign(np.random.default_rng(0).normal(0, 2, [16, 2]))
    made.model.classifier.bias.assign([1.0, -1.0])
    made.save_pretrained(folder)
    return folder


def task_of(distillation=None, **changes):
    """Returns the task whose label is whether a token is odd, on 48 examples."""
    objective = ClassificationObjective("single_label", (), distillation)
    return LabelTask(objective, **{"train": random_examples(48, 0, 8), **changes})


def run_of(start, output_dir, teacher="", distillation=None, **changes):
    settings = FineTuningSettings(
        str(start),
        max_seq_length=64,
        learning_rate=3e-3,
        num_train_epochs=1,
        random_seed=1,
        **changes,
    )
    return FineTuningRun(
        settings=settings,
        training=TRAINING,
        strategy=make_strategy("default"),
        output_dir=output_dir,
        record={"teacher": str(teacher)},
        distillation=distillation and replace(distillation, teacher=str(teacher)),
    )


def go(run, task=None):
    return (task or task_of(run.distillation)).run(run, open_pretrained(run.settings))


@pytest.mark.slow
def test_a_changed_teacher_is_noticed_when_the_run_resumes(tiny_checkpoint, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    run = run_of(tiny_checkpoint, tmp_path / "run", tmp_path / "teacher", EVEN)
    run = replace(run, training=replace(TRAINING, num_train_steps=1))
    go(run)
    other = TextClassifier.from_pretrained(teacher)
    other.model.classifier.kernel.assign(np.zeros([16, 2]))
    other.save_pretrained(tmp_path / "teacher")
    with pytest.raises(InputError, match="the content of teacher_weights has changed"):
        go(run)


def test_each_loss_includes_its_weight_and_skips_examples_that_pad_the_batch(teacher):
    temperature = 3.0
    model = TextClassifier.from_pretrained(teacher).model
    batch = {
        "input_ids": np.array([[2, 6, 3], [2, 7, 3], [2, 8, 3]], np.int32),
        "input_mask": np.ones([3, 3], np.int32),
        "segment_ids": np.zeros([3, 3], np.int32),
        "labels": np.array([0, 1, 1]),
        "example_weights": np.array([1.0, 1.0, 0.0], np.float32),
        "teacher_logits": np.array([[1.0, -1.0], [2.0, 0.0], [9.0, 0.0]], np.float32),
    }
    plain = ClassificationObjective("single_label")
    distillation = Distillation(0.25, temperature)
    objective = ClassificationObjective("single_label", (), distillation)
    assert objective.metrics == ("label_loss", "soft_loss", "accuracy")
    sums, counts = objective.sums(model, batch, False), objective.weights(batch)
    assert {name: float(count) for name, count in counts.items()} == dict.fromkeys(sums, 2.0)
    outputs = model(select_inputs(batch))
    expected, found = (
        np.exp(np.asarray(logits, np.float64)[:2] / temperature)
        for logits in (batch["teacher_logits"], outputs["logits"])
    )
    expected, found = (each / each.sum(-1, keepdims=True) for each in (expected, found))
    divergence = (expected * np.log(expected / found)).sum()
    assert float(sums["soft_loss"]) == pytest.approx(0.25 * 9 * divergence, rel=1e-4)
    label_loss = 0.75 * float(plain.sums(model, batch, False)["loss"])
    assert float(sums["label_loss"]) == pytest.approx(label_loss)


def test_outputs_of_the_teacher_for_unlabeled_tokens_are_marked():
    examples = random_examples(4, 0, 8)
    count = len(examples.input_ids)
    outputs = {"logits": np.ones([count, 3], np.float32)}
    labeled = add_teacher_outputs(examples, outputs, per_token=True).token_labels
    unlabeled = examples.token_labels["tags"] == -1
    assert unlabeled.any()
    assert (labeled["teacher_logits"][unlabeled] == NO_OUTPUT).all()
    assert (labeled["teacher_logits"][~unlabeled] == 1).all()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"tokens": TOKENS[:-1]}, "has 49 tokens, .* has 50; expected the same vocabulary for s"),
        ({"hidden_size": 8}, "--teacher=.*: has hidden_size 8, and the student 16; expected a t"),
        (
            {"max_position_embeddings": 32},
            "--teacher=.* has 32 positions; expected at least the student's max_seq",
        ),
    ],
)
def test_teachers_that_do_not_match_are_rejected(
    tiny_checkpoint, make_checkpoint, tmp_path, made, message
):
    start = make_checkpoint(tmp_path / "start", **{"tokens": TOKENS} | made)
    teacher = TextClassifier.from_pretrained(start, labels=["even", "odd"])
    teacher.save_pretrained(tmp_path / "teacher")
    run = run_of(tiny_checkpoint, tmp_path / "run", tmp_path / "teacher", EVEN)
    with pytest.raises(InputError, match=message):
        go(run)
    assert not (tmp_path / "run").exists()
