"""Alignment against a token-by-token, eigenvector-by-eigenvector float64 computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.analysis import (
    PrincipalKind,
    alignment,
    alignment_sums,
    cumulative_product,
    eigen_directions,
    finish_alignment,
    principal,
)

jit_alignment = jax.jit(alignment)


def projectors(f):
    """Projector of each eigenvector, or of its pair's plane, by descending real part."""
    values, vectors = np.linalg.eig(np.float64(f))
    order = np.lexsort((-values.imag, -values.real))
    result = []
    for k in order:
        v = vectors[:, k]
        columns = np.stack([v.real, v.imag], 1) if values[k].imag else v.real[:, None]
        result.append(columns @ np.linalg.pinv(columns))
    return values[order], result


def by_definition(before, after, projector):
    def correlations(x):
        shadows = [projector @ token for token in x]
        sizes = [np.linalg.norm(t) * np.linalg.norm(s) for t, s in zip(x, shadows, strict=True)]
        return np.array([abs(t @ s) for t, s in zip(x, shadows, strict=True)]) / sizes

    grown = correlations(after) - correlations(before)
    return correlations(after).mean(), grown.mean(), (grown > 0).mean()


@pytest.mark.parametrize("seed", range(3))
def test_alignment_is_that_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(2, 9, 9)).astype(np.float32)
    before = rng.normal(size=(2, 50, 9)).astype(np.float32)
    after = before + np.float32(0.5) * before @ f.swapaxes(-1, -2)
    got = jit_alignment(before, after, f)
    for layer in range(2):
        values, each = projectors(f[layer])
        table = np.array([by_definition(before[layer], after[layer], p) for p in each])
        mine = [getattr(got, name)[layer] for name in ("gamma_mean", "psi_mean", "rho_mean")]
        np.testing.assert_allclose(mine, table.mean(0), atol=2e-6)
        if got.kind[layer] != PrincipalKind.NEAR_TIE:
            assert got.kind[layer] == (values[0].imag != 0)
            mine = [got.gamma[layer], got.psi[layer], got.rho[layer]]
            np.testing.assert_allclose(mine, table[0], atol=2e-6)


def test_skew_matrices_have_all_their_pairs_counted_though_real_parts_tie():
    rng = np.random.default_rng(4)
    blocks = np.zeros((6, 6), np.float32)  # eigenvalues 3i, 2i, i and conjugates, in any order
    for i, size in enumerate((3, 1, 2)):
        blocks[2 * i, 2 * i + 1], blocks[2 * i + 1, 2 * i] = -size, size
    x = rng.normal(size=(40, 6)).astype(np.float32)
    got = jit_alignment(x, x, blocks)
    planes = np.linalg.norm(x.reshape(40, 3, 2), axis=2) / np.linalg.norm(x, axis=1)[:, None]
    np.testing.assert_allclose(got.gamma_mean, planes.mean(), rtol=1e-5)
    assert got.kind == PrincipalKind.COMPLEX and got.rho == 0


def diagonalisable(values, seed=0):
    v = np.random.default_rng(seed).normal(size=(len(values), len(values)))
    return (v @ np.diag(values) @ np.linalg.inv(v)).astype(np.float32), v


def test_principal_is_the_largest_real_part_and_not_the_largest_modulus():
    f, v = diagonalisable([2.0674, 1.5, 0.3, -2.1455])  # like PM's ALBERT-large
    got = principal(f)
    assert got.kind == PrincipalKind.REAL
    np.testing.assert_allclose(got.value, 2.0674, rtol=1e-4)
    np.testing.assert_allclose(got.gap, 0.5674, rtol=1e-3)
    np.testing.assert_allclose(np.abs(got.basis[:, 0] @ v[:, 0]), np.linalg.norm(v[:, 0]), 1e-4)
    np.testing.assert_array_equal(got.basis[:, 1:], 0)


@pytest.mark.parametrize(("second", "kind"), [(3.7738, "NEAR_TIE"), (3.0, "REAL")])
def test_near_tie_projects_on_both_vectors(second, kind):
    f, v = diagonalisable([3.8624, second, 1.0, -1.0, 0.2])  # like PM's ALBERT-base
    got = principal(f)
    assert got.kind == PrincipalKind[kind]
    inside = v[:, :2] if kind == "NEAR_TIE" else v[:, :1]
    basis = np.asarray(got.basis)
    np.testing.assert_allclose(basis @ (basis.T @ inside), inside, atol=2e-3)
    assert np.linalg.matrix_rank(basis) == inside.shape[1]
    assert principal(f, near_tie=0.5).kind == PrincipalKind.NEAR_TIE


def test_near_tie_with_a_complex_pair_takes_its_plane_too():
    f = np.zeros((4, 4), np.float32)
    f[0, 0], f[3, 3] = 2.0, -1.0
    f[1:3, 1:3] = [[1.95, -0.5], [0.5, 1.95]]
    got = principal(f)
    assert got.kind == PrincipalKind.NEAR_TIE
    np.testing.assert_allclose(np.linalg.norm(got.basis, axis=1), [1, 1, 1, 0], atol=1e-5)


def test_tokens_in_pieces_give_the_same_as_tokens_at_once():
    rng = np.random.default_rng(5)
    before, after = rng.normal(size=(2, 2500, 6)).astype(np.float32)  # several chunks and a rest
    f = rng.normal(size=(6, 6)).astype(np.float32)
    directions = eigen_directions(f)
    pieces = [alignment_sums(before[a:b], after[a:b], directions) for a, b in [(0, 7), (7, 2500)]]
    streamed = finish_alignment(jax.tree.map(jnp.add, *pieces), directions.kind)
    whole = jit_alignment(before, after, f)
    np.testing.assert_allclose(streamed, whole, rtol=2e-5)
    values, each = projectors(f)
    table = np.mean([by_definition(before, after, p) for p in each], axis=0)
    np.testing.assert_allclose([whole.gamma_mean, whole.psi_mean], table[:2], atol=1e-5)


def test_zero_tokens_correlate_with_nothing():
    x = np.zeros((3, 4), np.float32)
    got = jit_alignment(x, x, np.diag(np.float32([3, 1, 0.5, 0.1])))
    assert got.gamma == 0 and got.gamma_mean == 0 and got.rho == 0


def test_memory_does_not_grow_with_tokens_times_eigenvectors():
    f = jax.ShapeDtypeStruct((64, 64), np.float32)

    def temporary(tokens):
        x = jax.ShapeDtypeStruct((tokens, 64), np.float32)
        return jit_alignment.lower(x, x, f).compile().memory_analysis().temp_size_in_bytes

    arguments_grow = 2 * (16384 - 4096) * 64 * 4  # at most a copy of each argument
    assert temporary(16384) - temporary(4096) <= 1.1 * arguments_grow


def test_cumulative_product_renormalises_where_the_bare_product_overflows():
    rng = np.random.default_rng(6)
    f = 1e3 * rng.normal(size=(30, 5, 5))
    got = jax.jit(cumulative_product)(f.astype(np.float32))
    product, log_scale = np.eye(5), 0.0
    for t in range(30):
        product = f[t] @ product
        size = np.linalg.norm(product)
        product, log_scale = product / size, log_scale + np.log(size)
        np.testing.assert_allclose(got.matrix[t], product, atol=1e-4)
        np.testing.assert_allclose(got.log_scale[t], log_scale, rtol=1e-5)
    assert log_scale > np.log(np.finfo(np.float32).max)  # the bare product is inf


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((5, 3), (5, 3), (4, 4)), r"\(5, 3\), \(5, 3\) and \(4, 4\)"),
        (((5, 3), (4, 3), (3, 3)), r"before and after"),
        (((2, 5, 3), (2, 5, 3), (3, 3, 3)), r"\(3, 3, 3\)"),
    ],
)
def test_bad_shapes_are_one_clear_line(shapes, words):
    with pytest.raises(ValueError, match=words):
        alignment(*(np.ones(s, np.float32) for s in shapes))
    with pytest.raises(ValueError, match=r"\[T, D, D\]"):
        cumulative_product(np.ones((3, 3), np.float32))
