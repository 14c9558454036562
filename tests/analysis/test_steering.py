"""Steering: which eigenvalues move and by how much, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.analysis import layer_matrix, precompensate, steer

D = 12


def random_weights(seed, d=D, inner=D):
    rng = np.random.default_rng(seed)
    w_v, w_o = rng.normal(size=(d, inner)), rng.normal(size=(inner, d))
    return (w_v / d**0.5).astype(np.float32), (w_o / d**0.5).astype(np.float32)


def spectrum(w_v, w_o):
    values, vectors = np.linalg.eig(np.float64(layer_matrix(w_v, w_o)))
    order = np.argsort(-values.real)
    return values[order], vectors[:, order]


def test_layer_matrix_gains_exactly_the_rank_one_term():
    w_v, w_o = random_weights(0)
    rng = np.random.default_rng(1)
    w_r, w_l = rng.normal(size=(2, D)).astype(np.float32)
    w_l = w_l * np.sign(w_l @ w_r)
    got = jax.jit(steer)(w_v, w_o, w_r, 3.0, w_l)
    want = np.float64(layer_matrix(w_v, w_o)) + 3 * np.outer(w_r, w_l)
    np.testing.assert_allclose(layer_matrix(w_v, got.w_o), want, atol=2e-4)
    np.testing.assert_allclose(got.sigma_effective, 3 * w_l @ w_r, rtol=1e-4)
    assert got.residual < 1e-4
    change = np.linalg.norm(got.w_o - w_o) / np.linalg.norm(w_o)
    np.testing.assert_allclose(got.relative_change, change, rtol=1e-4)


@pytest.mark.parametrize("length", [1.0, 1e-3, 50.0])
def test_default_left_makes_sigma_the_new_principal_eigenvalue(length):
    w_v, w_o = random_weights(2)
    w_r = np.random.default_rng(3).normal(size=D).astype(np.float32) * np.float32(length)
    got = steer(w_v, w_o, w_r, 87.0)
    values, vectors = spectrum(w_v, got.w_o)
    np.testing.assert_allclose(got.sigma_effective, 87, rtol=1e-4)
    np.testing.assert_allclose(values[0], 87, rtol=2e-2)
    cosine = np.abs(vectors[:, 0].conj() @ w_r) / np.linalg.norm(w_r)
    assert cosine > 0.999


def test_an_unrelated_left_vector_gives_its_product_and_not_sigma():
    w_v, w_o = random_weights(4)
    w_r, w_l = np.eye(D, dtype=np.float32)[:2]
    w_l = w_l + np.float32(0.1) * w_r
    got = steer(w_v, w_o, w_r, 1000.0, w_l)  # PM would have the eigenvalue at 1000
    np.testing.assert_allclose(got.sigma_effective, 100, rtol=1e-3)
    assert abs(spectrum(w_v, got.w_o)[0][0]) < 150


def test_steering_along_an_eigenvector_moves_only_its_eigenvalue():
    w_v, w_o = random_weights(5)
    f = np.float64(layer_matrix(w_v, w_o))
    values, right = np.linalg.eig(f)
    j = int(np.argmax(np.where(np.abs(values.imag) < 1e-9, values.real, -np.inf)))
    left = np.linalg.inv(right)[j].real  # left @ right[:, j] = 1
    got = steer(w_v, w_o, right[:, j].real, 5.0, left)
    want = np.append(np.delete(values, j), values[j] + 5)
    moved = np.linalg.eigvals(np.float64(layer_matrix(w_v, got.w_o)))
    distance = np.abs(moved[:, None] - want[None])
    assert distance.min(axis=1).max() < 1e-3 and distance.min(axis=0).max() < 1e-3
    np.testing.assert_allclose(got.sigma_effective, 5, rtol=1e-3)


def test_low_rank_values_are_steered_in_their_span_and_the_rest_is_reported():
    w_v, w_o = random_weights(6, inner=4)
    w_r = np.random.default_rng(7).normal(size=D).astype(np.float32)
    got = steer(w_v, w_o, w_r, 10.0)
    unit = w_r / (w_r @ w_r)
    inside = w_v @ np.linalg.lstsq(np.float64(w_v), unit, rcond=None)[0]
    np.testing.assert_allclose(
        got.residual, np.linalg.norm(inside - unit) / np.linalg.norm(unit), rtol=1e-4
    )
    assert 0.1 < got.residual < 1
    np.testing.assert_allclose(got.sigma_effective, 10 * inside @ w_r, rtol=1e-4)
    want = np.float64(layer_matrix(w_v, w_o)) + 10 * np.outer(w_r, inside)
    np.testing.assert_allclose(layer_matrix(w_v, got.w_o), want, atol=1e-4)


def test_a_singular_square_matrix_falls_back_to_least_squares():
    w_v, w_o = random_weights(8)
    w_v = np.concatenate([w_v[:, :6], w_v[:, :6]], axis=1)  # grouped queries: each head twice
    got = steer(w_v, w_o, np.ones(D, np.float32), 4.0)
    assert np.isfinite(got.w_o).all() and 0.1 < got.residual < 1
    y = (got.w_o - w_o) @ np.ones(D) / D
    np.testing.assert_allclose(y[:6], y[6:], atol=1e-5)  # least norm: both copies share


def test_sixteen_bit_weights_are_changed_in_float32():
    w_v, w_o = (jnp.asarray(w, jnp.bfloat16) for w in random_weights(9))
    assert steer(w_v, w_o, np.ones(D, np.float32), 2.0).w_o.dtype == jnp.float32


@pytest.mark.parametrize(
    ("direction", "sigma", "left", "words"),
    [
        (np.zeros(D), 1.0, None, "direction is zero or not finite"),
        (np.full(D, np.nan), 1.0, None, "direction is zero or not finite"),
        (np.ones(D), 0.0, None, "sigma has to be positive"),
        (np.ones(D), -2.0, None, "sigma has to be positive"),
        (np.ones(D), 1.0, -np.ones(D), "not positive: tokens would not be drawn"),
        (np.ones(D - 1), 1.0, None, r"direction has shape \(11,\), but the width is 12"),
        (np.ones(D), 1.0, np.ones(3), r"left has shape \(3,\)"),
    ],
)
def test_refusals_are_one_clear_line(direction, sigma, left, words):
    w_v, w_o = random_weights(10)
    with pytest.raises(ValueError, match=words):
        steer(w_v, w_o, direction, sigma, left)


def test_under_jit_a_refused_steering_is_nan():
    w_v, w_o = random_weights(11)
    got = jax.jit(steer)(w_v, w_o, np.ones(D, np.float32), 1.0, -np.ones(D, np.float32))
    assert np.isnan(got.w_o).any()
    with pytest.raises(ValueError, match=r"\[D, V\].*\(12, 12\) and \(3, 12\)"):
        steer(w_v, w_o[:3], np.ones(D), 1.0)


def test_precompensation_finds_an_input_of_an_ffn():
    rng = np.random.default_rng(12)
    w_1, w_2 = rng.normal(size=(8, 32)) / 3, rng.normal(size=(32, 8)) / 5

    def ffn(x):
        return x + jax.nn.gelu(x @ jnp.asarray(w_1, x.dtype)) @ jnp.asarray(w_2, x.dtype)

    target = rng.normal(size=8).astype(np.float32)
    got = jax.jit(lambda t: precompensate(ffn, t))(target)
    assert got.residual < 1e-3 and got.cosine > 0.9999
    np.testing.assert_allclose(
        got.residual, np.linalg.norm(ffn(got.x) - target) / np.linalg.norm(target), rtol=1e-3
    )


def test_precompensation_reports_what_cannot_be_reached():
    got = precompensate(jax.nn.relu, np.float32([1.0, -1.0]))
    np.testing.assert_allclose(got.residual, 1 / np.sqrt(2), rtol=1e-3)
    with pytest.raises(ValueError, match=r"maps \(2,\) to \(1,\)"):
        precompensate(lambda x: x[:1], np.ones(2, np.float32))
