"""Limits of the features against long float64 iteration, and ranks against brute force."""

import itertools

import jax
import numpy as np
import pytest
from attention_families import softmax

from spectral_flax.analysis import dominance, limit_features, limit_rank
from spectral_flax.ops import eigvals

jit_limit = jax.jit(limit_features, static_argnames=("steps", "tie_rtol"))


def iterate(x, h, a, steps):
    """X_L / |mu|^L by renormalised float64 iteration, mu from NumPy's eigenvalues."""
    mu = np.abs(1 + np.outer(np.linalg.eigvals(h), np.linalg.eigvals(a))).max()
    for _ in range(steps):
        x = (x + a @ x @ h.T) / mu
    return x


def random_case(seed, n=6, d=4, shift=0.0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(d, d)) - shift * np.eye(d)
    return rng.normal(size=(n, d)), h, softmax(2 * rng.normal(size=(n, n)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_limit_is_what_long_iteration_reaches(seed, shift, x64):
    x, h, a = random_case(seed, shift=shift)
    steps = 3000
    got = np.asarray(jit_limit(x, h, a, steps=steps, tie_rtol=1e-10))
    want = iterate(x, h, a, steps)
    # Pairs within 1e-2 of the best have died out after 3000 steps; nearer ones would not have.
    np.testing.assert_allclose(got, want, atol=1e-7 * np.abs(want).max())


def test_a_complex_winner_turns_and_steps_says_when(x64):
    a = softmax(np.array([[0.0, 3, 0], [0, 0, 3], [3, 0, 0]]))
    h = 2 * np.array([[-0.5, np.sqrt(3) / 2], [-np.sqrt(3) / 2, -0.5]])
    x = np.random.default_rng(0).normal(size=(3, 2))
    for steps in (400, 401):
        got = limit_features(x, h, a, steps=steps)
        np.testing.assert_allclose(got, iterate(x, h, a, steps), atol=1e-9)
        assert np.linalg.matrix_rank(got, tol=1e-6) == 2


def test_a_perron_winner_makes_all_tokens_equal():
    x, _, a = (np.float32(m) for m in random_case(1))
    h = np.diag(np.float32([0.9, 0.5, 0.2, 0.1]))
    got = np.asarray(limit_features(x, h, a))
    np.testing.assert_allclose(got, np.broadcast_to(got[0], got.shape), atol=1e-5)


def test_matches_the_kronecker_matrix_on_a_small_case(x64):
    x, h, a = random_case(3, n=3, d=2)
    update = np.eye(6) + np.kron(h, a)
    values, vectors = np.linalg.eig(update)
    size = np.abs(values)
    coefficients = np.linalg.solve(vectors, x.T.reshape(-1).astype(complex))
    keep = size > size.max() * (1 - 1e-8)
    flat = (vectors[:, keep] @ (coefficients * (values / size) ** 7)[keep]).real
    np.testing.assert_allclose(limit_features(x, h, a, steps=7), flat.reshape(2, 3).T, atol=1e-10)


def test_vit_size_stays_far_below_a_gigabyte():
    n, d = 197, 768
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in ((n, d), (d, d), (n, n))]
    memory = jit_limit.lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < 100e6


def test_a_defective_matrix_gives_nan_rather_than_nonsense():
    x, _, a = (np.float32(m) for m in random_case(2, d=2))
    assert np.isnan(limit_features(x, np.float32([[1, 1], [0, 1]]), a)).all()


def brute_force_rank(tied):
    """Largest number of tied pairs with no two in a row or column."""
    rows, columns = tied.shape
    for size in range(min(rows, columns), 0, -1):
        for chosen in itertools.combinations(range(rows), size):
            for order in itertools.permutations(range(columns), size):
                if tied[list(chosen), list(order)].all():
                    return size
    return 0


def test_rank_is_a_maximum_matching_between_the_tied():
    rng = np.random.default_rng(0)
    lambda_h, lambda_a = rng.choice([-1.0, 0.5, 1.0], (40, 3)), rng.choice([1.0, -1.0], (40, 4))
    got = jax.jit(limit_rank)(lambda_h, lambda_a)
    for h, a, rank in zip(lambda_h, lambda_a, got, strict=True):
        size = np.abs(1 + np.outer(h, a))
        assert rank == brute_force_rank(size >= size.max() - 1e-6)


def test_rank_is_one_without_ties_and_full_for_identities():
    _, h, a = random_case(5)
    values = eigvals(np.float32(h)), eigvals(np.float32(a))
    # A conjugate pair of H with the Perron value: two tied pairs that share their token vector.
    assert dominance(*values).tied == 1 and limit_rank(*values) == 1
    assert limit_rank(np.ones(4), np.ones(6)) == 4
    assert limit_rank(np.array([np.nan]), np.ones(2)) == 0


def test_rank_is_that_of_the_features(x64):
    x = np.random.default_rng(1).normal(size=(5, 3))
    h, a = np.diag([1.0, 1.0, -1.0]), np.diag([1.0, 1.0, 0.3, 0.2, 0.1])
    limit = limit_features(x, h, a)
    assert np.linalg.matrix_rank(limit) == 2
    assert limit_rank(np.diag(h), np.diag(a)) == 2


def test_bad_shapes_are_one_clear_line():
    with pytest.raises(ValueError, match=r"x \[N, D\].*\(3, 2\), \(3, 3\), \(3, 3\)"):
        limit_features(np.ones((3, 2)), np.ones((3, 3)), np.ones((3, 3)))
