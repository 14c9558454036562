"""PM Appendix D against autodiff of the map itself, sharp thresholds and long iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.analysis import (
    bipartite_spectrum,
    equilibrium_spectrum,
    lyapunov,
    oja_step,
    stable_eta,
)

D = 4


def symmetric(values, seed=0):
    v = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return v @ np.diag(values) @ v.T, v


def jacobian_eigenvalues(step, x):
    """All eigenvalues of the ambient Jacobian, and those on the tangent space of the spheres.

    The tangent spaces at x and at step(x) = +-x are the same planes.
    """
    n, d = x.shape
    jacobian = np.asarray(jax.jacobian(step)(x)).reshape(n * d, n * d)
    tangent = np.zeros((n, d, n, d - 1))
    for i in range(n):
        tangent[i, :, i] = np.linalg.svd(x[i][None])[2][1:].T
    tangent = tangent.reshape(n * d, n * (d - 1))
    return np.linalg.eigvals(jacobian), np.linalg.eigvals(tangent.T @ jacobian @ tangent)


def same_values(got, want, atol=1e-10):
    """Equal as multisets, to `atol`."""
    got, want = list(np.asarray(got).astype(complex)), list(np.asarray(want).astype(complex))
    assert len(got) == len(want)
    for value in got:
        nearest = int(np.argmin(np.abs(np.array(want) - value)))
        assert abs(want.pop(nearest) - value) < atol


@pytest.mark.parametrize("k", range(D))
@pytest.mark.parametrize("eta", [0.3, 0.9])  # for eta = 0.9, k = 3 the map swaps v_k and -v_k
def test_consensus_spectrum_is_that_of_autodiff_and_normal_directions_have_zero(k, eta, x64):
    f, v = symmetric([1.0, 0.4, -0.2, -1.5], seed=k)
    n = 3
    ambient, tangent = jacobian_eigenvalues(lambda x: oja_step(x, f, eta), np.tile(v[:, k], (n, 1)))
    same_values(equilibrium_spectrum(f, k, n, eta), tangent)
    # Erratum: PM Lemma 3's first class gives the n normal directions other values; they are 0.
    same_values(ambient, np.append(tangent, np.zeros(n)))
    growth = 1 + eta * np.array([1.0, 0.4, -0.2, -1.5])[k]
    assert abs((1 - (growth - 1) + (growth - 1) ** 2) / growth) > 0.1  # Lemma 3's value


def one_head(f, f_q, f_k, eta):
    def step(x):
        scores = (x @ f_q.T) @ (x @ f_k.T).T
        x = x + eta * jax.nn.softmax(scores, axis=-1) @ x @ f.T
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    return step


@pytest.mark.parametrize(("n_plus", "n_minus"), [(3, 2), (2, 2), (4, 1), (1, 3)])
@pytest.mark.parametrize("k", [0, 2, 3])
def test_bipartite_spectrum_is_that_of_autodiff(n_plus, n_minus, k, x64):
    rng = np.random.default_rng(k)
    f, v = symmetric([1.0, 0.4, -0.2, -1.5], seed=k)
    f_q, f_k = 0.6 * rng.normal(size=(2, D, D))
    eta = 0.7
    x = np.concatenate([np.tile(v[:, k], (n_plus, 1)), np.tile(-v[:, k], (n_minus, 1))])
    _, tangent = jacobian_eigenvalues(one_head(f, f_q, f_k, eta), x)
    mu = v[:, k] @ f_q.T @ f_k @ v[:, k]
    got = bipartite_spectrum(f, k, n_plus, n_minus, eta, mu)
    same_values(got, tangent)


def test_bipartite_spectrum_without_attention_is_the_oja_system_and_unstable(x64):
    f, v = symmetric([1.0, 0.4, -0.2, -1.5], seed=9)
    for k in range(D):
        x = np.concatenate([np.tile(v[:, k], (3, 1)), np.tile(-v[:, k], (2, 1))])
        _, tangent = jacobian_eigenvalues(lambda x: oja_step(x, f, 0.3), x)
        got = bipartite_spectrum(f, k, 3, 2, 0.3, 0.0)
        same_values(got, tangent)
        assert np.abs(got).max() > 1


def converged(f, eta, steps=3000):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, len(f))), jnp.float32)
    step = jax.jit(lambda x: oja_step(x, f.astype(np.float32), eta))
    return np.asarray(jax.lax.fori_loop(0, steps, lambda _, x: step(x), x))


def test_the_threshold_on_eta_is_sharp():
    f, v = symmetric([1.0, 0.5, -2.0, -5.0])
    assert stable_eta(f.astype(np.float32)) == pytest.approx(0.5, rel=1e-5)
    assert np.abs(converged(f, 0.45) @ v[:, 0]).min() > 0.9999
    assert np.abs(converged(f, 0.6) @ v[:, 3]).min() > 0.9999
    for eta, stable in [(0.499, True), (0.501, False)]:
        values = equilibrium_spectrum(f.astype(np.float32), 0, 4, eta)
        assert (np.abs(values).max() < 1) == stable


def test_no_threshold_is_needed_when_the_largest_modulus_is_positive():
    f, v = symmetric([2.0, 0.5, -1.0, -1.9])
    assert np.isinf(stable_eta(f.astype(np.float32)))
    assert np.abs(converged(f, 20.0) @ v[:, 0]).min() > 0.9999
    for k in (1, 2, 3):  # every other consensus is unstable
        assert np.abs(equilibrium_spectrum(f.astype(np.float32), k, 4, 0.2)).max() > 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_lyapunov_does_not_rise_under_its_condition(seed, share):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(D, D))
    f = (f + f.T).astype(np.float32)
    x = rng.normal(size=(5, D))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    eta = share / (2 * np.linalg.norm(f, 2))
    before, after = lyapunov(x, f), lyapunov(oja_step(x, f, eta), f)
    assert after <= before + 1e-6 * np.linalg.norm(f, 2)


def test_lyapunov_is_its_definition_and_can_rise_for_large_eta():
    rng = np.random.default_rng(1)
    f, x = rng.normal(size=(D, D)), rng.normal(size=(5, D))
    total = x.sum(axis=0)
    np.testing.assert_allclose(lyapunov(x, f), -total @ f @ total / (2 * 25), rtol=1e-5)
    f, v = symmetric([1.0, 0.5, -2.0, -5.0])
    x = np.float32(np.tile(v[:, 0] + 0.3 * v[:, 3], (3, 1)))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    f = np.float32(f)
    assert lyapunov(oja_step(x, f, 2.0), f) > lyapunov(x, f)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: equilibrium_spectrum(f, 4, 2, 0.1), "k=4 is no eigenvector"),
        (lambda f: equilibrium_spectrum(f, 0, 0, 0.1), "n=0: at least one token"),
        (lambda f: bipartite_spectrum(f, 0, 2, 0, 0.1, 0.0), "n_minus=0"),
        (lambda f: oja_step(np.ones((3, 5)), f, 0.1), r"\(3, 5\) and \(4, 4\)"),
        (lambda f: stable_eta(f[:3]), r"\(3, 4\)"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call(np.eye(4, dtype=np.float32))
