"""HMatrix against the definitions of docs/theory.md, in float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from spectral_flax.errors import UserError
from spectral_flax.models.h_matrix import (
    BASELINES,
    SPECTRA,
    HMatrix,
    eigenvalues,
    homogeneous_runs,
    invert,
    kinds,
)

LAYERS, WIDTH, HEADS = 2, 12, 3
SPECTRAL = [kind for kind in kinds() if kind not in BASELINES and not kind.endswith("star")]
INTERVALS = [(-1.0, 0.0), (-0.3, 0.1), (0.25, 2.0), (-3.0, -2.9), (-1e3, 1e3), (1e-4, 2e-4)]


def reference_lambda(kind: str, psi: np.ndarray, low: float, high: float) -> np.ndarray:
    """Lambda as OS section 4 states it, and the interval's definition."""
    psi = psi.astype(np.float64)
    match kind.removeprefix("ns_"):
        case "minus":
            return -(psi**2)
        case "plus":
            return psi**2
        case "clip":
            return np.minimum(np.maximum(psi, -1.0), -1e-4)
        case "interval":
            return low + (high - low) / (1.0 + np.exp(-psi))
    raise AssertionError(kind)


@functools.cache
def built(kind: str, interval: tuple[float, float] = (-1.0, 0.0), seed: int = 0):
    """(params, w_v, w_o) of a fresh HMatrix, as NumPy arrays."""
    h = HMatrix(kind, LAYERS, WIDTH, interval)
    (w_v, w_o), variables = jax.jit(h.init_with_output)(jax.random.key(seed))
    return jax.tree.map(np.asarray, (variables["params"], w_v, w_o))


def applied(kind: str, params, interval: tuple[float, float] = (-1.0, 0.0)):
    w_v, w_o = HMatrix(kind, LAYERS, WIDTH, interval).apply({"params": params})
    return np.asarray(w_v, np.float64), np.asarray(w_o, np.float64)


@pytest.mark.parametrize("kind", ["standard", *SPECTRAL])
def test_shapes_and_types(kind):
    _, w_v, w_o = built(kind)
    assert w_v.shape == w_o.shape == (LAYERS, WIDTH, WIDTH)
    assert w_v.dtype == w_o.dtype == np.float32
    assert np.abs(w_v[0] - w_v[1]).max() > 0.01, "layers must not share their draw"


@pytest.mark.parametrize("kind", SPECTRAL)
def test_eigenvalues_of_h_are_lambda(kind):
    interval = (-0.7, 0.4)
    params, w_v, w_o = built(kind, interval)
    expected = np.sort(reference_lambda(kind, params["psi"], *interval))
    for layer in range(LAYERS):
        h = (w_v[layer].astype(np.float64) @ w_o[layer]).T
        values = np.linalg.eigvals(h)
        # V is orthogonal to 2e-6 in float32, and |lambda| <= 1.
        np.testing.assert_allclose(np.sort(values.real), expected[layer], atol=5e-6)
        assert np.abs(values.imag).max() < 5e-6
    owned = np.asarray(eigenvalues(kind, params, interval))
    assert owned.dtype == np.complex64 and owned.shape == (LAYERS, WIDTH)
    np.testing.assert_allclose(owned, expected[:, ::-1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_each_head_owns_its_slice_of_lambda(kind):
    interval = (-0.7, 0.4)
    params, w_v, w_o = built(kind, interval)
    if kind.startswith("ns_"):
        # Far from orthogonal, as after training.
        rng = np.random.default_rng(3)
        params = params | {"v": (params["v"] + 0.2 * rng.standard_normal(w_v.shape)).astype("f4")}
        assert np.linalg.cond(params["v"]).max() > 3
        w_v, w_o = applied(kind, params, interval)
    lam = reference_lambda(kind, params["psi"], *interval)
    size = WIDTH // HEADS
    # Bauer-Fike: an error of cond(V) eps in V^-1 moves an eigenvalue by up to cond(V) times that.
    atol = 5e-6 * np.linalg.cond(w_v).max() ** 2
    for layer in range(LAYERS):
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            h = (w_v[layer][:, own].astype(np.float64) @ w_o[layer][own]).T
            expected = np.sort(np.append(lam[layer, own], np.zeros(WIDTH - size)))
            values = np.linalg.eigvals(h)
            np.testing.assert_allclose(np.sort(values.real), expected, atol=atol)
            assert np.abs(values.imag).max() < atol


@pytest.mark.parametrize("kind", [kind for kind in SPECTRAL if not kind.startswith("ns_")])
def test_symmetric_form_is_symmetric_with_orthogonal_v(kind):
    _, w_v, w_o = built(kind)
    for layer in range(LAYERS):
        v = w_v[layer].astype(np.float64)
        np.testing.assert_allclose(v @ v.T, np.eye(WIDTH), atol=2e-6)
        h = (v @ w_o[layer]).T
        np.testing.assert_allclose(h, h.T, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in SPECTRAL if kind.startswith("ns_")])
def test_ns_form_starts_orthogonal_and_inverts_any_v(kind):
    params, w_v, _ = built(kind)
    np.testing.assert_array_equal(w_v, params["v"])
    eye = np.broadcast_to(np.eye(WIDTH), w_v.shape)
    np.testing.assert_allclose(w_v @ w_v.swapaxes(1, 2), eye, atol=2e-6)
    rng = np.random.default_rng(4)
    params = params | {"v": rng.standard_normal(w_v.shape).astype(np.float32)}
    w_v, w_o = applied(kind, params)
    lam = reference_lambda(kind, params["psi"], -1.0, 0.0)
    expected = lam[..., None] * np.linalg.inv(w_v)
    atol = 1e-6 * np.linalg.cond(w_v).max() * np.abs(expected).max()
    np.testing.assert_allclose(w_o, expected, atol=atol)


def test_lambda_range_at_the_start():
    for form in ("", "ns_"):
        lam = {
            kind: np.asarray(eigenvalues(form + kind, built(form + kind)[0], (-1.0, 0.0)).real)
            for kind in ("minus", "plus", "clip")
        }
        assert (lam["minus"] >= -1).all() and (lam["minus"] < 0).all()
        assert (lam["plus"] <= 1).all() and (lam["plus"] > 0).all()
        assert (lam["clip"] >= -1).all() and (lam["clip"] <= -1e-4).all()
        # Spread over the range, not bunched at one end.
        assert all(
            np.abs(values).min() < 0.2 and np.abs(values).max() > 0.7 for values in lam.values()
        )


@pytest.mark.parametrize("interval", INTERVALS)
def test_interval_starts_inside_and_spread(interval):
    low, high = interval
    for kind in ("interval", "ns_interval"):
        lam = np.asarray(eigenvalues(kind, built(kind, interval)[0], interval).real)
        assert (lam >= np.float32(low)).all() and (lam <= np.float32(high)).all()
        assert np.ptp(lam) > 0.6 * (high - low)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    ends=st.tuples(
        st.floats(-100, 100, width=32, allow_subnormal=False),
        st.floats(2**-10, 100, width=32, allow_subnormal=False),
    ),
    psi=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)
def test_interval_holds_for_any_psi(ends, psi):
    low, high = ends[0], ends[0] + ends[1]
    lam = float(SPECTRA["interval"].to_lambda(jnp.float32(psi), low, high))
    assert np.float32(low) <= lam <= np.float32(high)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(psi=st.floats(-1e4, 1e4, width=32))
def test_signs_hold_for_any_psi(psi):
    psi = jnp.float32(psi)
    assert SPECTRA["minus"].to_lambda(psi, 0.0, 0.0) <= 0
    assert SPECTRA["plus"].to_lambda(psi, 0.0, 0.0) >= 0
    assert -1 <= SPECTRA["clip"].to_lambda(psi, 0.0, 0.0) <= -np.float32(1e-4)


@pytest.mark.parametrize(
    ("depth", "fraction", "first"),
    [(12, 0.5, 6), (24, 0.5, 12), (2, 0.5, 1), (4, 0.25, 1), (4, 0.75, 3), (12, 1 / 3, 4)],
)
@pytest.mark.parametrize("kind", ["star", "ns_star"])
def test_star_splits_the_depth(kind, depth, fraction, first):
    minus = kind.replace("star", "minus")
    expected = ((minus, first), ("standard", depth - first))
    assert homogeneous_runs(kind, depth, fraction) == expected


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.01, 0.99, -0.5, 2.0])
def test_star_with_an_empty_half_is_refused(fraction):
    with pytest.raises(UserError, match="both need at least one"):
        homogeneous_runs("star", 12, fraction)


def test_other_kinds_are_one_run():
    for kind in BASELINES:
        assert homogeneous_runs(kind, 12, 0.5) == (("standard", 12),)
    for kind in SPECTRAL:
        assert homogeneous_runs(kind, 12, 0.0) == ((kind, 12),)
    with pytest.raises(UserError, match="did you mean 'ns_minus'"):
        homogeneous_runs("ns_mins", 12, 0.5)


def test_fan_in_does_not_count_layers():
    # torch's default: uniform in +-1/sqrt(fan_in), so a standard deviation of 1/sqrt(3 fan_in).
    width, layers = 32, 9
    params = HMatrix("standard", layers, width).init(jax.random.key(0))["params"]
    for name in ("w_v", "w_o"):
        assert np.abs(params[name]).max() <= width**-0.5
        assert np.std(params[name]) == pytest.approx((3 * width) ** -0.5, rel=0.03)


def test_inverse_and_its_gradient(x64):
    rng = np.random.default_rng(5)
    v = jnp.asarray(rng.standard_normal((3, 6, 6)))
    cotangent = jnp.asarray(rng.standard_normal((3, 6, 6)))
    assert v.dtype == jnp.float64
    ours, pull_ours = jax.vjp(invert, v)
    theirs, pull_theirs = jax.vjp(jnp.linalg.inv, v)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(pull_ours(cotangent)[0], pull_theirs(cotangent)[0], rtol=1e-9)
    check_grads(invert, (v,), order=1, modes=["rev"], rtol=1e-5)
