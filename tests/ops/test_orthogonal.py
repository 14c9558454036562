"""orthogonal: against explicit reflections, finite differences, and inputs built to break it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops import orthogonal

METHODS = ("qr", "householder", "cayley")


def _theta(kind, d, batch=1):
    rng = np.random.default_rng(d)
    gaussian = rng.standard_normal((batch, d, d))
    common = rng.standard_normal((batch, 1, d))
    return {
        "gaussian": gaussian,
        "cosine 0.9": 3 * common + gaussian,
        "cosine 0.99": 10 * common + gaussian,
        "cosine 0.9999": 100 * common + gaussian,
        "all equal": 0 * gaussian + common,
        "all positive": np.abs(gaussian),
        "rank 4": gaussian[..., :4] @ gaussian[..., :4, :],
        "near identity": np.eye(d) + 1e-3 * gaussian,
        "identity": np.eye(d) + 0 * gaussian,
        "a plane": np.stack([np.cos(np.arange(d)), np.sin(np.arange(d))], -1) @ np.eye(2, d)
        + 0 * gaussian,
        "tiny": 1e-30 * gaussian,
        "huge": 1e30 * gaussian,
    }[kind]


KINDS = (
    *("gaussian", "cosine 0.9", "cosine 0.99", "cosine 0.9999", "all equal", "all positive"),
    *("rank 4", "near identity", "identity", "a plane", "tiny", "huge"),
)


@functools.cache
def _jitted(method):
    return jax.jit(functools.partial(orthogonal, method=method))


@functools.cache
def _gradient(method):
    def loss(theta, weights):
        return jnp.vdot(weights, orthogonal(theta, method))

    return jax.jit(jax.grad(loss))


def _error(q):
    q = np.asarray(q, np.float64)
    eye = np.eye(q.shape[-1])
    transposed = np.swapaxes(q, -1, -2)
    return max(np.abs(q @ transposed - eye).max(), np.abs(transposed @ q - eye).max())


def _product_of_reflections(theta):
    q = np.eye(theta.shape[-1])
    for row in np.asarray(theta, np.float64):
        q = q - 2 * np.outer(q @ row, row) / (row @ row)
    return q


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [192, 768])
def test_orthogonal_to_two_in_a_million(method, d):
    for kind in KINDS:
        if (method, kind) == ("qr", "all equal"):
            continue  # LAPACK itself leaves 4e-6 on this matrix of rank 1
        error = _error(_jitted(method)(jnp.asarray(_theta(kind, d), jnp.float32)))
        assert error <= 2e-6, kind


@pytest.mark.parametrize("d", [1, 2, 5, 64, 65, 130])
def test_householder_is_the_product_of_reflections(d, x64):
    theta = _theta("gaussian", d)[0]
    np.testing.assert_allclose(
        _jitted("householder")(theta), _product_of_reflections(theta), atol=1e-13 * d
    )


def test_householder_in_float32_follows_float64_on_correlated_rows():
    theta = np.asarray(_theta("cosine 0.99", 192)[0], np.float32)
    # One rounding of K K^T moves Q by 1e-4 here (the polish restores orthogonality, not this).
    np.testing.assert_allclose(
        _jitted("householder")(theta), _product_of_reflections(theta), atol=1e-3
    )


def test_polish_reaches_one_bad_matrix_of_a_batch():
    theta = np.concatenate([_theta("gaussian", 192), _theta("all equal", 192)])
    assert _error(_jitted("householder")(jnp.asarray(theta, jnp.float32))) <= 2e-6
    vmapped = jax.jit(jax.vmap(functools.partial(orthogonal, method="householder")))
    assert _error(vmapped(jnp.asarray(theta, jnp.float32))) <= 2e-6


def test_cayley_is_its_formula(x64):
    theta = _theta("gaussian", 20)[0]
    skew = (theta - theta.T) / 2
    expected = (np.eye(20) - skew) @ np.linalg.inv(np.eye(20) + skew)
    np.testing.assert_allclose(_jitted("cayley")(theta), expected, atol=1e-13)
    np.testing.assert_array_equal(orthogonal(jnp.zeros((3, 3)), "cayley"), np.eye(3))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [7, 70])
def test_gradient_matches_finite_differences(method, d, x64):
    rng = np.random.default_rng(0)
    theta, weights = rng.standard_normal((2, 2, d, d))
    gradient = _gradient(method)(theta, weights)
    for _ in range(3):
        step = 1e-5 * rng.standard_normal(theta.shape)
        difference = np.vdot(weights, _jitted(method)(theta + step) - _jitted(method)(theta - step))
        # Central differences are good to step^2 times the third derivative over the first.
        np.testing.assert_allclose(np.vdot(gradient, 2 * step), difference, rtol=1e-5)


@pytest.mark.parametrize("method", ["householder", "cayley"])
def test_second_derivative_and_forward_mode(method, x64):
    theta, weights = np.random.default_rng(1).standard_normal((2, 4, 4))

    def loss(x):
        return jnp.vdot(weights, orthogonal(x, method) ** 3)

    gradient = jax.jit(jax.grad(loss))
    reverse = jax.jit(jax.jacrev(gradient))(theta)
    forward = jax.jit(jax.jacfwd(gradient))(theta)
    step = 1e-5
    difference = np.stack(
        [
            (gradient(theta + e) - gradient(theta - e)) / (2 * step)
            for e in step * np.eye(16).reshape(16, 4, 4)
        ],
        axis=-1,
    ).reshape(4, 4, 4, 4)
    np.testing.assert_allclose(reverse, difference, atol=1e-6 * np.abs(difference).max())
    np.testing.assert_allclose(forward, reverse, atol=1e-10 * np.abs(difference).max())


def test_householder_gradient_in_float32_follows_float64():
    theta = _theta("gaussian", 192, batch=2)
    weights = np.random.default_rng(2).standard_normal(theta.shape)
    single = _gradient("householder")(jnp.float32(theta), jnp.float32(weights))
    with jax.enable_x64(True):
        double = np.asarray(_gradient("householder")(theta, weights))
    error = np.linalg.norm(single - double) / np.linalg.norm(double)
    assert error <= 1e-5


@pytest.mark.parametrize("method", ["householder", "cayley"])
def test_gradient_is_finite_everywhere_else(method):
    weights = jnp.asarray(_theta("gaussian", 192), jnp.float32)
    for kind in KINDS:
        if (method, kind) == ("householder", "tiny"):
            scale = 1e-6  # the true gradient is 1e30 times larger: keep the cotangent small
        else:
            scale = 1.0
        theta = jnp.asarray(_theta(kind, 192), jnp.float32)
        assert np.isfinite(_gradient(method)(theta, scale * weights)).all(), kind


def test_zero_row_reflects_nothing_and_gets_no_gradient():
    theta = jnp.asarray(_theta("gaussian", 6)[0], jnp.float32).at[2].set(0)
    without = np.delete(np.asarray(theta), 2, axis=0)
    np.testing.assert_allclose(
        _jitted("householder")(theta), _product_of_reflections(without), atol=1e-6
    )
    gradient = np.asarray(_gradient("householder")(theta, jnp.ones((6, 6))))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[2], np.zeros(6))


@pytest.mark.parametrize("method", METHODS)
def test_sixteen_bits_are_computed_in_float32(method):
    theta = jnp.asarray(_theta("gaussian", 8), jnp.bfloat16)
    q = _jitted(method)(theta)
    assert q.dtype == jnp.float32
    np.testing.assert_array_equal(q, _jitted(method)(theta.astype(jnp.float32)))


@pytest.mark.parametrize("method", METHODS)
def test_leading_axes_are_a_batch(method):
    theta = jnp.asarray(_theta("gaussian", 6, batch=6), jnp.float32)
    q = _jitted(method)(theta.reshape(2, 3, 6, 6))
    np.testing.assert_allclose(q.reshape(6, 6, 6), _jitted(method)(theta), atol=1e-6)
    assert orthogonal(jnp.zeros((0, 6, 6)), method).shape == (0, 6, 6)


@pytest.mark.parametrize(
    "theta, method, error, message",
    [
        (np.ones((3, 4), np.float32), "qr", ValueError, r"theta has shape \(3, 4\)"),
        (np.ones(3, np.float32), "cayley", ValueError, r"theta has shape \(3,\)"),
        (np.ones((0, 0), np.float32), "qr", ValueError, r"theta has shape \(0, 0\)"),
        (np.ones((3, 3), np.int32), "householder", TypeError, "theta has dtype int32"),
        (np.ones((3, 3), np.complex64), "cayley", TypeError, "theta has dtype complex64"),
        (np.ones((3, 3), np.float32), "expm", ValueError, "expected one of qr, householder"),
    ],
)
def test_bad_input_is_named(theta, method, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(functools.partial(orthogonal, method=method), theta)
