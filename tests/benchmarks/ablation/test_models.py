"""The checkpoints and features of an arm in benchmarks/ablation.py."""

import dataclasses

import numpy as np
import pytest


def test_checkpoints_are_found_in_the_phases(ablation, plan, tmp_path):
    folders = ablation.corpus.Folders(tmp_path, tmp_path / "work")
    arm, run = plan.arms[0], tmp_path / "work/pretraining/a"
    for percent, expected in (
        (10, "phase-1/checkpoints/step-00000100"),
        (50, "phase-1/checkpoints/step-00000500"),
        (70, "phase-2/checkpoints/step-00000200"),
        (100, "."),
    ):
        assert ablation.pretraining.checkpoint(arm, percent, plan, folders) == run / expected


@pytest.mark.parametrize("scale", [0.002, 0.003, 0.05, 0.31])
def test_shares_of_scaled_runs_have_a_checkpoint(ablation, plan, tmp_path, scale):
    plan = dataclasses.replace(plan, scale=scale)
    folders, arm = ablation.corpus.Folders(tmp_path, tmp_path), plan.arms[0]
    interval = plan.checkpoint_interval(arm)
    saved = {
        f"phase-{number}/checkpoints/step-{step:08}"
        for number, phase in enumerate(plan.phases_of(arm), 1)
        for step in range(interval, phase.steps + 1, interval)
    }
    for percent in (10, 20, 40, 70):
        path = ablation.pretraining.checkpoint(arm, percent, plan, folders)
        assert str(path.relative_to(ablation.pretraining.run_folder(arm, folders))) in saved


def test_features_are_made_from_the_layers(ablation):
    values = np.arange(24.0).reshape(2, 4, 3)  # Two tokens, four layers from the last one on.
    combine = ablation.tagger.combine
    assert np.array_equal(combine(values, "last")[0], [0, 1, 2])
    assert np.array_equal(combine(values, "second_to_last")[0], [3, 4, 5])
    assert np.array_equal(combine(values, "sum_last_four")[0], [18, 22, 26])
    assert np.array_equal(combine(values, "concat_last_four")[1], np.arange(12.0, 24.0))


def test_words_without_a_token_have_no_place(ablation):
    first_tokens = ablation.tagger.first_tokens
    # [CLS] a b b [] c [SEP]
    assert first_tokens(np.array([1, 2, 0, 1]), 6).tolist() == [1, 2, 0, 4]
    # The same truncated to [CLS] a b b [SEP]
    assert first_tokens(np.array([1, 2, 0, 1]), 5).tolist() == [1, 2, 0, 0]


@pytest.mark.slow
def test_tagger_learns_from_features(ablation):
    tagger, random = ablation.tagger, np.random.default_rng(0)
    data = []
    for length in random.integers(1, 30, 64):
        tags = random.integers(0, 2, length)
        features = np.stack([tags, 1 - tags] * 8, axis=1).astype(np.float32)
        data.append(tagger.Tagged(features, [("O", "B-x")[tag] for tag in tags]))
    model = tagger.train(data, ["O", "B-x"], epochs=100, units=16, seed=0)
    predicted = tagger.predict(model, data, ["O", "B-x"])
    hits = [
        a == b
        for each, tags in zip(data, predicted, strict=True)
        for a, b in zip(each.tags, tags, strict=True)
    ]
    assert np.mean(hits) > 0.95
