"""OS's printed rules: where they hold, and the counterexamples where they do not."""

import jax
import numpy as np
import pytest

from spectral_flax.analysis import (
    DominanceKind,
    corollary2,
    corollary3,
    dominance,
    theorem1,
    theorem4,
)

PERRON, MIN_REAL, FAILED = DominanceKind.PERRON, DominanceKind.MIN_REAL, DominanceKind.FAILED


def real_attention(rng, count, n, low=-0.99):
    """Spectra as OS assumes them: real, 1 last, the rest in (low, 1)."""
    rest = np.sort(rng.uniform(low, 0.99, (count, n - 1)), axis=1)
    return np.concatenate([rest, np.ones((count, 1))], axis=1).astype(np.float32)


def agreement(rule, lambda_h, lambda_a):
    predicted, truth = jax.jit(rule)(lambda_h, lambda_a), jax.jit(dominance)(lambda_h, lambda_a)
    said = np.asarray(predicted.kind) != FAILED
    same = np.isclose(predicted.magnitude, truth.magnitude, rtol=1e-5)
    return said, same


@pytest.mark.parametrize(
    ("low_h", "high_h", "low_a"),
    [(0.01, 3, -0.99), (-1.9, -0.01, -0.99), (-5, -2.1, -0.99), (-1.9, -0.01, 0.01)],
)
def test_theorem4_holds_for_spectra_of_one_sign(low_h, high_h, low_a):
    rng = np.random.default_rng(0)
    lambda_h = rng.uniform(low_h, high_h, (20_000, 4)).astype(np.float32)
    said, same = agreement(theorem4, lambda_h, real_attention(rng, 20_000, 5, low_a))
    assert said.all() and same.all()


def test_theorem4_fails_on_some_spectra_of_mixed_sign_and_the_known_one_is_among_them():
    rng = np.random.default_rng(1)
    lambda_h = rng.uniform(-3, 3, (20_000, 3)).astype(np.float32)
    mixed = (lambda_h.min(1) < 0) & (lambda_h.max(1) > 0)
    lambda_h, lambda_a = lambda_h[mixed], real_attention(rng, mixed.sum(), 4)
    said, same = agreement(theorem4, lambda_h, lambda_a)
    # It fails exactly where lambda_H_d is farther from -1 than lambda_H_1, yet lambda_A_1 < 0
    # flips lambda_H_1 beyond it.
    low, high = lambda_h.min(1), lambda_h.max(1)
    flipped = (high + 2 > np.abs(low)) & (low * lambda_a[:, 0] > high)
    assert said.all() and 0.1 < flipped.mean() < 0.3
    np.testing.assert_array_equal(same, ~flipped)
    lambda_h, lambda_a = np.array([-2.076, 0.825, 1.439]), np.array([-0.915, -0.23, 0.285, 1])
    predicted, truth = theorem4(lambda_h, lambda_a), dominance(lambda_h, lambda_a)
    assert (predicted.kind, predicted.h_index, predicted.a_index) == (PERRON, 2, 3)
    assert (truth.kind, truth.h_index, truth.a_index) == (MIN_REAL, 0, 0)
    np.testing.assert_allclose([predicted.magnitude, truth.magnitude], [2.439, 2.8995], rtol=1e-4)


def test_theorem1_names_the_wrong_pair_for_positive_attention():
    lambda_h, lambda_a = np.array([-1, -0.5]), np.array([0.1, 1])
    predicted, truth = theorem1(lambda_h, lambda_a), dominance(lambda_h, lambda_a)
    assert (predicted.h_index, truth.h_index) == (0, 1)
    np.testing.assert_allclose([predicted.magnitude, truth.magnitude], [0.90, 0.95], rtol=1e-6)


def test_theorem1_holds_for_right_half_planes_and_where_its_conditions_name_what_they_test():
    rng = np.random.default_rng(2)
    angle, size = rng.uniform(-np.pi / 2, np.pi / 2, (5000, 4)), rng.uniform(0.1, 2, (5000, 4))
    right = (size * np.exp(1j * angle)).astype(np.complex64)
    said, same = agreement(theorem1, right, real_attention(rng, 5000, 5, 0.01))
    assert said.all() and same.all()
    # lambda_A_1 < 0 and everything in the left half-plane: conditions and names agree, but the
    # farthest 1 + lambda_H need not have the farthest 1 + lambda_H lambda_A_1.
    said, same = agreement(theorem1, -right.conj(), real_attention(rng, 5000, 5))
    assert said.all() and 0.2 < same.mean() < 1


def test_corollary2_predicts_the_kind_in_both_its_ranges_and_nothing_elsewhere():
    rng = np.random.default_rng(3)
    lambda_a = real_attention(rng, 5000, 5)
    for low, high, kind in [(-1, -1e-3, MIN_REAL), (1e-3, 5, PERRON)]:
        lambda_h = rng.uniform(low, high, (5000, 4)).astype(np.float32)
        said, same = agreement(corollary2, lambda_h, lambda_a)
        assert said.all() and same.all()
        assert (np.asarray(corollary2(lambda_h, lambda_a).kind) == kind).all()
    for outside in ([-1.5, -0.5], [-0.5, 0.5], [0.5 + 0.1j, 0.5 - 0.1j]):
        got = corollary2(np.array(outside), np.array([-0.5, 1]))
        assert (got.kind, got.h_index, got.a_index) == (FAILED, -1, -1)


def test_corollary2_claims_not_perron_and_that_alone_survives_complex_attention():
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(3000, 6, 6)) * rng.uniform(0.5, 5, (3000, 1, 1))
    a = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    lambda_a = np.linalg.eigvals(a)
    lambda_a = np.take_along_axis(lambda_a, np.argsort(-lambda_a.real, axis=1), axis=1)
    lambda_h = rng.uniform(-1, -0.01, (3000, 4))
    truth = jax.jit(dominance)(lambda_h, lambda_a)
    assert (np.asarray(truth.kind) != PERRON).all()
    assert (np.asarray(truth.kind) == DominanceKind.OTHER).any()


def test_corollary3_speaks_only_when_all_phases_are_on_one_side():
    rng = np.random.default_rng(5)
    lambda_a = real_attention(rng, 2000, 4)
    right = (rng.uniform(0, 2, (2000, 3)) + 1j * rng.normal(size=(2000, 3))).astype(np.complex64)
    got = corollary3(right, lambda_a)
    assert (np.asarray(got.kind) == PERRON).all()
    left = corollary3(-right, lambda_a)
    assert set(np.unique(left.kind)) == {PERRON, MIN_REAL}
    assert corollary3(np.array([1.0, -1.0]), np.array([0.5, 1])).kind == FAILED
    # The closest call: a purely imaginary lambda_H of larger modulus, with lambda_A_1 near -1, as
    # |1 - 2.82i| is just below |1 + 2|.
    case = np.array([2.0, 2.82j, -2.82j]), np.array([-0.999, 1])
    assert corollary3(*case).kind == PERRON
    np.testing.assert_allclose(dominance(*case).magnitude, 3.0, rtol=1e-6)


def test_predictions_use_the_order_given_and_have_the_batch_shape():
    lambda_h = np.array([[0.5, -0.2], [-0.2, 0.5]], np.float32)
    for rule in (theorem1, theorem4, corollary3):
        got = rule(lambda_h[None], np.array([1.0, 0.3], np.float32))
        assert got.kind.shape == (1, 2)
        if rule is not corollary3:
            np.testing.assert_array_equal(got.h_index, [[0, 1]])
            np.testing.assert_array_equal(got.a_index, [[0, 0]])
