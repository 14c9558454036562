"""The laws of a class-balanced subset."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.data.images import load_data, load_digits
from spectral_flax.data.subset import balanced_subset
from spectral_flax.errors import UserError
from tests.tiny_models import tiny_config

law = settings(deadline=None, derandomize=True, max_examples=40)
label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
fractions = st.floats(0.001, 1.0)
seeds = st.integers(0, 2**31)


def draw(labels, fraction, seed):
    """The subset, or None where a class would be empty."""
    try:
        return balanced_subset(labels, fraction, seed)
    except UserError:
        sizes = np.unique(labels, return_counts=True)[1]
        assert any(int(size * fraction) == 0 for size in sizes)
        return None


@given(label_arrays, fractions, seeds)
@law
def test_each_class_has_its_share_once(labels, fraction, seed):
    rows = draw(labels, fraction, seed)
    if rows is None:
        return
    assert (np.diff(rows) > 0).all() and rows.min() >= 0 and rows.max() < len(labels)
    for label in set(labels.tolist()):
        assert (labels[rows] == label).sum() == int((labels == label).sum() * fraction)
    np.testing.assert_array_equal(rows, balanced_subset(labels.astype(np.int64), fraction, seed))


@given(label_arrays, fractions, fractions, seeds)
@law
def test_a_smaller_fraction_is_part_of_a_larger_one(labels, one, other, seed):
    small, large = draw(labels, min(one, other), seed), draw(labels, max(one, other), seed)
    if small is not None and large is not None:
        assert set(small.tolist()) <= set(large.tolist())


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60).map(np.array), seeds)
@law
def test_a_class_does_not_depend_on_the_others(labels, seed):
    merged = np.where(labels == 0, 0, 9)
    rows, other = draw(labels, 0.5, seed), draw(merged, 0.5, seed)
    if rows is not None and other is not None:
        assert rows[labels[rows] == 0].tolist() == other[labels[other] == 0].tolist()


def test_all_of_it_is_all_of_it():
    labels = np.array([2, 0, 1, 1, 2])
    assert balanced_subset(labels, 1.0, 3).tolist() == [0, 1, 2, 3, 4]


def test_the_papers_sizes_and_every_seed_its_own():
    labels = np.repeat(np.arange(100), 500)
    drawn = {}
    for fraction, each in ((0.1, 50), (0.5, 250), (1.0, 500)):
        rows = drawn[fraction] = balanced_subset(labels, fraction, 0)
        assert (np.bincount(labels[rows]) == each).all()
    # Random draws of a tenth share a tenth of their members.
    shared = len(np.intersect1d(drawn[0.1], balanced_subset(labels, 0.1, 1)))
    assert 400 < shared < 600
    # No position within a class is preferred: 5,000 draws of 500 positions, 10 each expected.
    assert np.bincount(drawn[0.1] % 500, minlength=500).max() < 30


def test_golden_draw():
    # A draw that moves makes every result on a fraction incomparable with those before.
    assert balanced_subset(np.arange(20) % 2, 0.4, 7).tolist() == [0, 2, 4, 7, 10, 11, 13, 19]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_no_fraction(fraction):
    with pytest.raises(UserError, match=r"data.fraction is .*; expected more than 0 and at most 1"):
        balanced_subset(np.zeros(4, int), fraction, 0)


def test_a_fraction_that_leaves_a_class_empty_is_told_with_one_that_does_not():
    labels = np.array([0] * 50 + [1] * 4)
    with pytest.raises(UserError) as error:
        balanced_subset(labels, 0.2, 0)
    message = "data.fraction 0.2 leaves class 1 with none of its 4 images; choose at least 0.25"
    assert str(error.value) == message
    assert len(balanced_subset(labels, 0.25, 0)) == 13


def test_a_configs_fraction_cuts_the_training_half_only():
    config, digits = tiny_config(), load_digits()
    config.data.fraction = 0.5
    images = load_data(config)
    rows = balanced_subset(digits.y_train, 0.5, config.seed)
    np.testing.assert_array_equal(images.x_train, digits.x_train[rows])
    np.testing.assert_array_equal(images.y_train, digits.y_train[rows])
    np.testing.assert_array_equal(images.x_test, digits.x_test)
    config.seed = 1
    assert not np.array_equal(load_data(config).x_train, images.x_train)
    config.data.fraction = 0.005
    with pytest.raises(UserError, match="data.fraction 0.005 leaves class 0 with none of its 143"):
        load_data(config)
