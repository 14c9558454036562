"""The dominating pair against brute force, OS's counterexamples and long iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_families import attention_families, layer_spectra, softmax

from spectral_flax.analysis import (
    DominanceKind,
    attention_eigvals,
    dominance,
    head_eigvals,
    hfc_lfc_ratio,
    layer_matrix,
    perron_position,
)
from spectral_flax.ops import eig

jit_dominance = jax.jit(dominance)

# A = softmax of a cyclic shift has eigenvalues 1, -0.432 +- 0.748i; H turns by -120 degrees.
CYCLE = softmax(np.array([[0.0, 3, 0], [0, 0, 3], [3, 0, 0]]))
TURN = 2 * np.array([[-0.5, np.sqrt(3) / 2], [-np.sqrt(3) / 2, -0.5]])


def test_agrees_with_brute_force_over_all_pairs():
    rng = np.random.default_rng(0)
    lambda_h = layer_spectra(rng, 50, 7)
    lambda_a = np.concatenate([np.ones((50, 1)), rng.uniform(-1, 1, (50, 8))], axis=1)
    got = jit_dominance(lambda_h, lambda_a)
    for i in range(50):
        pairs = [
            (abs(1 + h * a), j, k)
            for j, h in enumerate(lambda_h[i])
            for k, a in enumerate(lambda_a[i])
        ]
        size, j, k = max(pairs, key=lambda pair: pair[0])
        np.testing.assert_allclose(got.magnitude[i], size, rtol=1e-5)
        smallest = np.argmin(lambda_a[i])
        kind = [DominanceKind.OTHER, DominanceKind.MIN_REAL][int(k == smallest)]
        assert got.kind[i] == (DominanceKind.PERRON if k == 0 else kind)
        assert got.a_index[i] == k
        # a conjugate pair of lambda_H is a tie: either member may be named
        assert got.h_index[i] == j or np.isclose(lambda_h[i, got.h_index[i]], lambda_h[i, j].conj())


def test_a_winner_that_is_neither_perron_nor_smallest_exists_and_sharpens():
    values = attention_eigvals(CYCLE.astype(np.float32))
    np.testing.assert_allclose(values, [1, -0.432 + 0.748j, -0.432 - 0.748j], atol=2e-3)
    got = dominance(np.linalg.eigvals(TURN), values)
    np.testing.assert_allclose(got.magnitude, 2.728, atol=1e-3)
    # Its real part ties with its conjugate's, so for N = 3 it is the smallest; a fourth token of
    # smaller real part makes it OTHER.
    wider = np.append(np.asarray(values), -0.5)
    assert dominance(np.linalg.eigvals(TURN), wider).kind == DominanceKind.OTHER
    assert got.tied == 1  # the conjugate pair


def test_that_winner_makes_tokens_differ_in_long_iteration():
    x = np.random.default_rng(0).normal(size=(3, 2))
    for _ in range(60):
        x = x + CYCLE @ x @ TURN.T
        x /= np.linalg.norm(x)
    assert np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x.mean(0)) > 1e11
    assert np.linalg.matrix_rank(x, tol=1e-6) == 2
    assert hfc_lfc_ratio(np.eye(3, dtype=np.float32)) == pytest.approx(np.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(
    ("lambda_h", "lambda_a", "kind", "magnitude"),
    [
        # the pair that OS Theorem 4 misses (mixed signs, lambda_A_1 < 0), values in any order
        ([-2.076, 0.825, 1.439], [-0.915, -0.23, 0.285, 1], DominanceKind.MIN_REAL, 2.8995),
        ([-1.0, -0.5], [0.1, 1], DominanceKind.MIN_REAL, 0.95),
        ([0.5], [1, 0.2], DominanceKind.PERRON, 1.5),
        ([0.5], [1.0], DominanceKind.PERRON, 1.5),  # one token
    ],
)
def test_known_cases(lambda_h, lambda_a, kind, magnitude):
    got = dominance(np.array(lambda_h), np.array(lambda_a))
    assert got.kind == kind and got.tied == 0
    np.testing.assert_allclose(got.magnitude, magnitude, rtol=1e-4)


def test_ties_are_counted_and_the_first_pair_is_named():
    got = dominance(np.array([-1.0, 1.0, 1.0]), np.array([1.0, 1.0, -1.0]))
    # |1 + 1| is reached by h in {1, 1} with a in {1, 1}, and by h = -1 with a = -1
    assert got.tied == 4 and (got.h_index, got.a_index) == (0, 2)
    assert got.kind == DominanceKind.MIN_REAL


def test_nan_is_a_kind_of_its_own_and_not_an_answer():
    got = dominance(np.array([[1.0], [np.nan]]), np.array([1.0, 0.5]))
    np.testing.assert_array_equal(got.kind, [DominanceKind.PERRON, DominanceKind.FAILED])
    assert np.isnan(attention_eigvals(np.full((3, 3), np.nan, np.float32))).all()


def test_attention_spectrum_is_that_of_numpy_with_the_perron_value_first_and_exact():
    for name, a in attention_families(np.random.default_rng(1), 12, 3).items():
        got = np.asarray(jax.jit(attention_eigvals)(a))
        assert (got[:, 0] == 1).all(), name
        if name == "causal":
            want = -np.sort(-np.diagonal(a, axis1=1, axis2=2), axis=1)
            np.testing.assert_array_equal(got[:, 1:], want[:, 1:])
            continue
        # Coefficients of the characteristic polynomial do not care about order or multiplicity.
        for one, matrix in zip(got, np.float64(a), strict=True):
            want = np.poly(matrix)
            np.testing.assert_allclose(np.poly(one), want, atol=1e-5 * np.abs(want).max())


def test_sixteen_bit_attention_is_computed_in_float32():
    got = attention_eigvals(jnp.full((4, 4), 0.25, jnp.bfloat16))
    assert got.dtype == jnp.complex64
    np.testing.assert_allclose(got, [1, 0, 0, 0], atol=1e-6)


def test_perron_is_told_by_its_vector_when_another_eigenvalue_is_within_rounding_of_one():
    blocks = np.zeros((4, 4), np.float32)
    blocks[:2, :2] = blocks[2:, 2:] = 0.5  # two components: the eigenvalue 1 twice
    got = attention_eigvals(blocks)
    np.testing.assert_allclose(got, [1, 1, 0, 0], atol=1e-6)
    assert got[0] == 1
    near = (1 - 1e-7) * np.eye(6) + 1e-7 / 6  # all others are 1 - 1e-7
    _, vectors = eig(near.astype(np.float32), structure="general")
    one = perron_position(np.asarray([[1.0, 0, 0.6], [1, 1, 0.8], [1, -1, 0]], np.float32))
    assert one == 0 and vectors.shape == (6, 6)


def test_causal_attention_is_read_off_its_diagonal_in_and_out_of_jit():
    a = attention_families(np.random.default_rng(2), 9, 4)["causal"]
    eager = attention_eigvals(a)
    np.testing.assert_array_equal(jax.jit(attention_eigvals)(a), eager)
    told = jax.jit(lambda a: attention_eigvals(a, causal=True))
    np.testing.assert_array_equal(told(a), eager)
    assert "geev" not in told.lower(a).as_text()


def test_heads_have_the_nonzero_eigenvalues_of_their_layer_matrix():
    rng = np.random.default_rng(3)
    w_v = rng.normal(size=(2, 10, 6)).astype(np.float32)
    w_o = rng.normal(size=(2, 6, 10)).astype(np.float32)
    got = np.asarray(head_eigvals(w_v, w_o, 3))
    assert got.shape == (2, 3, 2)
    for layer in range(2):
        for head in range(3):
            columns = slice(2 * head, 2 * head + 2)
            full = layer_matrix(w_v[layer][:, columns], w_o[layer][columns])
            values = np.linalg.eigvals(np.float64(full))
            largest = values[np.argsort(-np.abs(values))[:2]]
            order = np.lexsort((-largest.imag, -largest.real))
            np.testing.assert_allclose(got[layer, head], largest[order], rtol=1e-4)


def test_layer_matrix_is_the_transposed_product_at_full_precision():
    w_v = np.random.default_rng(4).normal(size=(2, 5, 3)).astype(np.float32)
    w_o = np.random.default_rng(5).normal(size=(2, 3, 5)).astype(np.float32)
    want = np.swapaxes(np.float64(w_v) @ np.float64(w_o), 1, 2)
    np.testing.assert_allclose(layer_matrix(w_v, w_o), want, rtol=1e-5, atol=1e-6)
    assert "HIGHEST" in str(jax.make_jaxpr(layer_matrix)(w_v, w_o))
    half = layer_matrix(jnp.asarray(w_v, jnp.bfloat16), jnp.asarray(w_o, jnp.bfloat16))
    assert half.dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dominance(np.zeros((0,)), np.ones(3)), r"at least one eigenvalue.*\(0,\)"),
        (lambda: dominance(np.ones((2, 3)), np.ones((3, 3))), "do not broadcast"),
        (lambda: attention_eigvals(np.ones((3, 4), np.float32)), r"\[..., N, N\].*\(3, 4\)"),
        (lambda: layer_matrix(np.ones((4, 2)), np.ones((4, 2))), r"do not chain.*\(4, 2\)"),
        (lambda: head_eigvals(np.ones((4, 6)), np.ones((6, 4)), 4), "6 value columns"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()
