"""Entity scores as conlleval computes them, and the training objective."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.tasks.ner.metrics import TaggingObjective, entity_scores


def score(*pairs):
    return entity_scores([(gold.split(), guess.split()) for gold, guess in pairs])


def test_entity_counts_only_with_both_ends_and_type_correct():
    scores = score(
        # correct; too short; wrong type
        ("B-PER I-PER O B-LOC I-LOC O B-ORG", "B-PER I-PER O B-LOC O O B-LOC"),
    )
    assert scores == pytest.approx(
        {
            "precision": 1 / 3,
            "recall": 1 / 3,
            "f1": 1 / 3,
            "precision_LOC": 0,
            "recall_LOC": 0,
            "f1_LOC": 0,
            "precision_ORG": 0,
            "recall_ORG": 0,
            "f1_ORG": 0,
            "precision_PER": 1,
            "recall_PER": 1,
            "f1_PER": 1,
            "accuracy": 5 / 7,
        }
    )


def test_scores_are_over_all_entities_not_a_mean_over_types():
    scores = score(("B-A B-A B-A B-B", "B-A B-A B-A O"))
    assert scores["precision"] == 1
    assert scores["recall"] == 0.75
    assert scores["f1"] == pytest.approx(2 * 0.75 / 1.75)


def test_entity_ends_at_the_end_of_its_sentence():
    assert score(("B-PER", "B-PER"), ("I-PER", "I-PER"))["precision_PER"] == 1
    assert entity_scores([(["B-PER", "B-PER"], ["B-PER", "I-PER"])])["f1"] == 0


def test_predictions_may_be_invalid_sequences():
    assert score(("O B-PER I-PER O", "O I-PER I-PER O"))["f1"] == 1


def test_no_true_and_no_predicted_entities_give_0_like_conlleval():
    assert score(("O O", "O O")) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}


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
    gold = ["B-PER", "-", "O", "-", "B-LOC"]
    predicted = ["B-PER", "I-PER", "O", "B-LOC", "B-PER"]
    scores = entity_scores([(gold, predicted)])
    assert (scores["accuracy"], scores["precision"], scores["recall"]) == (2 / 3, 1 / 2, 1 / 2)
    assert entity_scores([(["-"], ["B-PER"])])["precision"] == 0


# --- training objective ---


def test_only_tagged_tokens_of_real_examples_count():
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    tags = np.array([[-1, 2, 4, -1], [-1, 0, -1, -1], [-1, 3, 3, -1]], np.int32)
    batch = {
        **{name: tf.zeros([3, 4], tf.int32) for name in ("input_ids", "input_mask")},
        "tags": tf.constant(tags),
        "example_weights": tf.constant([1.0, 1.0, 0.0]),  # The last row pads the batch.
    }
    task = TaggingObjective()
    sums = task.sums(lambda inputs, training: {"logits": tf.constant(logits)}, batch, True)
    weights = task.weights(batch)
    metrics = task.divide(
        np.array([sums[name] for name in task.metrics]),
        np.array([weights[name] for name in task.metrics]),
    )
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = [(0, 1, 2), (0, 2, 4), (1, 1, 0)]
    assert weights["loss"] == 3
    np.testing.assert_allclose(
        metrics["loss"], -np.mean([log_probabilities[place] for place in counted]), rtol=1e-6
    )
    hits = [logits[row, token].argmax() == tag for row, token, tag in counted]
    np.testing.assert_allclose(metrics["tag_accuracy"], np.mean(hits))


def test_batch_without_tagged_tokens_has_the_loss_0_and_no_gradient():
    logits = tf.random.normal([1, 4, 5])
    batch = {
        **{name: tf.zeros([1, 4], tf.int32) for name in ("input_ids", "input_mask")},
        "tags": tf.fill([1, 4], -1),
        "example_weights": tf.ones([1]),
    }
    task = TaggingObjective()
    with tf.GradientTape() as tape:
        tape.watch(logits)
        sums = task.sums(lambda inputs, training: {"logits": logits}, batch, True)
        loss = task.loss(sums, task.weights(batch))
    assert float(loss) == 0
    assert not tf.math.count_nonzero(tape.gradient(loss, logits))
