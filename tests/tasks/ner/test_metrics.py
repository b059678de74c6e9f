"""Entity scores as conlleval computes them, and the training objective."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.tasks.ner.tag_schemes import entity_scores
from keras_bert.tasks.ner.task import TaggingObjective


def score(*pairs):
    return entity_scores([(gold.split(), guess.split()) for gold, guess in pairs])


def counted_as_conlleval_does(pairs):
    """Iterates over both columns and tracks whether they agree since a common start."""

    def starts(before, tag):
        (p, before_type), (t, kind) = before, tag
        pairs = {"EE", "EI", "SE", "SI", "OE", "OI"}
        return t in "BS" or p + t in pairs or (t != "O" and kind != before_type)

    def ends(before, tag):
        (p, before_type), (t, kind) = before, tag
        pairs = {"BB", "BS", "BO", "IB", "IS", "IO"}
        return p in "ES" or p + t in pairs or (p != "O" and kind != before_type)

    correct, gold_count, guess_count = Counter(), Counter(), Counter()
    for gold, guess in pairs:
        agreeing = False
        last_gold = last_guess = ("O", "")
        for gold_tag, guess_tag in [*zip(gold, guess, strict=True), ("O", "O")]:
            g, p = ((tag[0], tag[2:]) for tag in (gold_tag, guess_tag))
            gold_ends, guess_ends = ends(last_gold, g), ends(last_guess, p)
            if agreeing and gold_ends and guess_ends:
                correct[last_gold[1]] += last_gold[1] == last_guess[1]
                agreeing = False
            elif agreeing and (gold_ends != guess_ends or g[1] != p[1]):
                agreeing = False
            gold_count[g[1]] += starts(last_gold, g)
            guess_count[p[1]] += starts(last_guess, p)
            if starts(last_gold, g) and starts(last_guess, p) and g[1] == p[1]:
                agreeing = True
            last_gold, last_guess = g, p
    return correct, guess_count, gold_count


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_counts_equal_the_algorithm_of_conlleval_for_any_tags(prefixes):
    tag = st.sampled_from(["O", *(f"{p}-{t}" for p in prefixes for t in ("X", "Y"))])
    pair = st.lists(st.tuples(tag, tag), max_size=12)

    @given(st.lists(pair, max_size=4))
    def check(sentences):
        pairs = [([g for g, _ in s], [p for _, p in s]) for s in sentences]
        scores = entity_scores(pairs)
        correct, guessed, gold = counted_as_conlleval_does(pairs)
        for kind in ("X", "Y"):
            if guessed[kind] or gold[kind]:
                precision, recall = scores[f"precision_{kind}"], scores[f"recall_{kind}"]
                assert precision * guessed[kind] == pytest.approx(correct[kind])
                assert recall * gold[kind] == pytest.approx(correct[kind])
                total = guessed[kind] + gold[kind]
                assert scores[f"f1_{kind}"] == pytest.approx(2 * correct[kind] / total)
            else:
                assert f"f1_{kind}" not in scores
        total = guessed.total() + gold.total()
        assert scores["f1"] == pytest.approx(2 * correct.total() / total if total else 0)

    check()


def test_words_with_unknown_labels_are_not_scored():
    scores = score(("B-PER - O - B-LOC", "B-PER I-PER O B-LOC B-PER"))
    assert (scores["accuracy"], scores["precision"], scores["recall"]) == (2 / 3, 1 / 2, 1 / 2)


# --- training objective ---


def test_only_tagged_tokens_of_real_examples_count():
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    tags = np.array([[-1, 2, 4, -1], [-1, 0, -1, -1], [-1, 3, 3, -1]], np.int32)
    batch = {
        **{name: tf.zeros([3, 4], tf.int32) for name in ("input_ids", "input_mask")},
        "tags": tf.constant(tags),
        "example_weights": tf.constant([1.0, 1.0, 0.0]),  # The last row pads the batch.
    }
    objective, inputs = TaggingObjective(), tf.constant(logits)

    def model(inputs_of_model, training):
        return {"logits": inputs}

    sums, weights = objective.sums(model, batch, True), objective.weights(batch)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = [(0, 1, 2), (0, 2, 4), (1, 1, 0)]
    assert weights["loss"] == weights["tag_accuracy"] == 3
    loss = -np.sum([log_probabilities[place] for place in counted])
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-6)
    hits = [logits[row, token].argmax() == tag for row, token, tag in counted]
    np.testing.assert_allclose(sums["tag_accuracy"], np.sum(hits))
    # Without tagged tokens, the loss is 0 and has no gradient.
    batch["tags"] = tf.fill([3, 4], -1)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = objective.loss(objective.sums(model, batch, True), objective.weights(batch))
    assert float(loss) == 0
    assert not tf.math.count_nonzero(tape.gradient(loss, inputs))
