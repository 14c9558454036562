"""h_spectrum against float64 eigenvalues of the H that each layer of the model really uses."""

import functools

import jax
import numpy as np
import pytest

from spectral_flax.models import h_spectrum
from spectral_flax.models.h_matrix import HMatrix
from tests.tiny_models import random_images, random_params, tiny_config, tiny_vit


def layer_matrices(model, params) -> np.ndarray:
    """H [L, D, D] float64 as the blocks got it, caught at HMatrix's output during a forward."""

    def at_h(module, method):
        return isinstance(module, HMatrix)

    apply = functools.partial(model.apply, capture_intermediates=at_h, mutable=["intermediates"])
    _, caught = jax.jit(apply)({"params": params}, random_images(1))
    runs = caught["intermediates"]["encoder"]
    pairs = [runs[name]["h"]["__call__"][0] for name in sorted(runs) if "h" in runs[name]]
    w_v, w_o = (np.concatenate([pair[i] for pair in pairs]).astype(np.float64) for i in (0, 1))
    return (w_v @ w_o).swapaxes(1, 2)


# The other kinds differ in their map only, which test_h_matrix.py checks.
VARIANTS = ("featscale", "minus", "ns_plus", "star", "ns_star", "ns_interval")


@pytest.mark.parametrize("variant", VARIANTS)
def test_spectrum_of_every_variant(variant):
    config = tiny_config(variant, depth=3, interval=(-0.4, 0.9))
    model = tiny_vit(config)
    params = random_params(model, (1, 8, 8, 1), noise=0.05)
    spectrum = np.asarray(h_spectrum(config, params))
    assert spectrum.shape == (3, 12) and spectrum.dtype == np.complex64
    assert (np.diff(spectrum.real, axis=1) <= 0).all(), "descending real parts"

    h = layer_matrices(model, params)
    for layer in range(3):
        values = np.linalg.eigvals(h[layer])
        values = values[np.lexsort((-values.imag, -values.real))]
        # The Gaussian layers' eigenvectors have condition numbers below 100: 100 float32 roundings
        # of an H of norm about 1.
        np.testing.assert_allclose(_canonical(spectrum[layer]), _canonical(values), atol=1e-5)


def _canonical(values: np.ndarray) -> np.ndarray:
    """Sorted with real parts rounded first, since conjugates differ there by a rounding."""
    return values[np.lexsort((-values.imag, -np.round(values.real, 4)))]


def test_spectrum_runs_in_jit():
    config = tiny_config("star")
    params = random_params(tiny_vit(config), (1, 8, 8, 1))
    compiled = jax.jit(lambda p: h_spectrum(config, p))(params)
    np.testing.assert_allclose(compiled, h_spectrum(config, params), atol=1e-6)
    assert (np.asarray(compiled)[0].real < 0).all(), "the first half of a star is negative"
