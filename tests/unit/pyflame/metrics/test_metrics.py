"""Metrics against their definitions, written out slowly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame import metrics


def labels(classes=4, size=30):
    return st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=size)


def split(pairs):
    preds, target = np.array(pairs).T
    return preds, target


@given(labels(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_batches_add_up(pairs, parts):
    preds, target = split(pairs)
    for make in (
        metrics.Accuracy,
        metrics.Precision,
        metrics.Recall,
        metrics.F1Score,
        metrics.MeanSquaredError,
        metrics.R2Score,
    ):
        whole, pieces = make(), make()
        whole.update(preds, target)
        for p, t in zip(np.array_split(preds, parts), np.array_split(target, parts), strict=True):
            pieces.update(p, t)
        np.testing.assert_allclose(pieces.compute(), whole.compute(), rtol=1e-9)


@given(labels())
@settings(max_examples=60, deadline=None)
def test_per_class_scores_by_definition(pairs):
    preds, target = split(pairs)
    precision, recall, f1 = (m(4, average=None) for m in (metrics.Precision, metrics.Recall, metrics.F1Score))
    for metric in (precision, recall, f1):
        metric.update(preds, target)
    for c in range(4):
        hit = int(((preds == c) & (target == c)).sum())
        called, true = int((preds == c).sum()), int((target == c).sum())
        assert precision.compute()[c] == (hit / called if called else 0)
        assert recall.compute()[c] == (hit / true if true else 0)
        assert f1.compute()[c] == pytest.approx(2 * hit / (called + true) if called + true else 0)


def test_micro_average_is_accuracy():
    preds, target = np.array([0, 1, 2, 2, 1]), np.array([0, 2, 2, 1, 1])
    for make in (metrics.Precision, metrics.Recall, metrics.F1Score):
        assert make(average="micro")(preds, target) == pytest.approx(metrics.Accuracy()(preds, target))


def test_macro_average_leaves_absent_classes_out():
    assert metrics.Recall(5, average="macro")([0, 1], [0, 1]) == 1.0
    assert metrics.Recall(5, average="weighted")([0, 0, 1], [0, 0, 0]) == pytest.approx(2 / 3)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=80, deadline=None)
def test_auroc_is_the_chance_to_outrank(pairs):
    scores, positive = np.array([s for s, _ in pairs], float), np.array([p for _, p in pairs])
    value = metrics.AUROC()(scores, positive.astype(int))
    ups, downs = scores[positive], scores[~positive]
    if not len(ups) or not len(downs):
        assert np.isnan(value)
        return
    wins = (ups[:, None] > downs).mean() + 0.5 * (ups[:, None] == downs).mean()
    assert value == pytest.approx(wins)


def test_average_precision_by_hand():
    # Ranks: + - + -; precision 1 at the first hit, 2/3 at the second.
    assert metrics.AveragePrecision()([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0]) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(metrics.AveragePrecision()([0.5, 0.4], [0, 0]))


def test_ranking_of_several_classes():
    scores = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    assert metrics.AUROC()(scores, [0, 1, 2, 0]) == 1.0
    assert metrics.AUROC(average=None)(scores, [0, 1, 2, 0]).tolist() == [1.0, 1.0, 1.0]
    assert metrics.AUROC(average="weighted")(scores, [0, 1, 2, 0]) == 1.0


def test_top_k_and_dense_predictions():
    scores = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    assert metrics.Accuracy(top_k=2)(scores, [1, 0]) == 0.5
    images = np.zeros((2, 3, 4, 4))
    images[:, 1] = 1
    assert metrics.Accuracy()(images, np.ones((2, 4, 4), int)) == 1.0


def test_logits_and_probabilities_of_one_class():
    assert metrics.Accuracy()(np.array([-2.0, 3.0]), [0, 1]) == 1.0
    assert metrics.Accuracy(threshold=0.8)(np.array([0.7, 0.9]), [0, 1]) == 1.0


@pytest.mark.parametrize(
    ("how", "expected"),
    [("true", [[0.5, 0.5], [0, 1]]), ("pred", [[1, 0.5], [0, 0.5]]), ("all", [[1 / 3, 1 / 3], [0, 1 / 3]])],
)
def test_confusion_shares(how, expected):
    np.testing.assert_allclose(metrics.ConfusionMatrix(2, normalize=how)([0, 1, 1], [0, 1, 0]), expected)


def test_regression_values():
    guess, truth = [2.0, 4.0], [1.0, 2.0]
    assert metrics.MeanSquaredError()(guess, truth) == 2.5
    assert metrics.RootMeanSquaredError()(guess, truth) == pytest.approx(2.5**0.5)
    assert metrics.MeanAbsoluteError()(guess, truth) == 1.5
    assert metrics.MeanAbsolutePercentageError()(guess, truth) == 1.0
    assert np.isnan(metrics.R2Score()([1.0], [1.0]))


@pytest.mark.parametrize(
    "make", [metrics.Accuracy, metrics.Precision, metrics.AUROC, metrics.MeanSquaredError, metrics.R2Score]
)
def test_nothing_seen_is_nan(make):
    assert np.isnan(make().compute())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: metrics.Accuracy()([1, 2, 3], [1, 2]), "Received"),
        (lambda: metrics.Accuracy()([1], [-1]), "from 0 on"),
        (lambda: metrics.Accuracy()([1], [0.5]), "fractions"),
        (lambda: metrics.Precision(2)([5], [0]), "num_classes is 2"),
        (lambda: metrics.Precision(average="best"), "average"),
        (lambda: metrics.MeanSquaredError()([1.0], [1.0, 2.0]), "same shape"),
        (lambda: metrics.Accuracy(top_k=0), "top_k"),
        (lambda: metrics.MetricCollection([metrics.Accuracy(), metrics.Accuracy()]), "Two metrics"),
    ],
)
def test_bad_input_is_named(call, error):
    with pytest.raises(ValueError, match=error):
        call()


def test_collection_resets_and_clones():
    both = metrics.MetricCollection({"a": metrics.Accuracy(), "b": metrics.MeanAbsoluteError()})
    assert both([1, 0], [1, 1]) == {"a": 0.5, "b": 0.5}
    twin = both.clone(prefix="t_")
    assert np.isnan(twin.compute()["t_a"])
    assert both.compute()["a"] == 0.5
    both.reset()
    assert np.isnan(both["a"].compute())
    assert list(both) == ["a", "b"]
    assert len(both) == 2
