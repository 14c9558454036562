"""Filter ratio, asymmetry and condition number against float64 NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.analysis import (
    asymmetry,
    condition_number,
    henrici,
    hfc_lfc_ratio,
    hfc_lfc_ratios,
)


@pytest.mark.parametrize(("norm", "order"), [("fro", "fro"), ("spectral", 2)])
def test_ratio_by_the_discrete_fourier_transform_of_the_definition(norm, order):
    x = np.random.default_rng(0).normal(0.3, 1, (3, 7, 4)).astype(np.float32)
    got = jax.jit(hfc_lfc_ratio, static_argnames="norm")(x, norm=norm)
    for one, ratio in zip(np.float64(x), got, strict=True):
        spectrum = np.fft.fft(one, axis=0)  # with the 1/n that OS's matrix lacks
        low = spectrum * (np.arange(7) == 0)[:, None]
        high = np.fft.ifft(spectrum - low, axis=0)
        want = np.linalg.norm(high, order) / np.linalg.norm(np.fft.ifft(low, axis=0), order)
        np.testing.assert_allclose(ratio, want, rtol=1e-5)


def test_equal_tokens_give_zero_centred_tokens_infinity_and_no_tokens_at_all_nan():
    equal = np.ones((5, 3), np.float32) * np.float32([1, -2, 3])
    assert hfc_lfc_ratio(equal) == 0
    assert np.isinf(hfc_lfc_ratio(np.float32([[1.0], [-1.0]])))
    assert np.isnan(hfc_lfc_ratio(np.zeros((4, 2), np.float32)))


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_ratio_and_asymmetry_do_not_depend_on_scale(scale):
    x = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    np.testing.assert_allclose(hfc_lfc_ratio(x * np.float32(scale)), hfc_lfc_ratio(x), rtol=1e-5)
    np.testing.assert_allclose(asymmetry(x * np.float32(scale)), asymmetry(x), rtol=1e-5)


def test_asymmetry_of_known_matrices():
    assert asymmetry(np.eye(3, dtype=np.float32)) == 0
    assert np.isinf(asymmetry(np.float32([[0, 1], [-1, 0]])))
    assert asymmetry(np.float32([[0, 1], [0, 0]])) == pytest.approx(1)
    assert np.isnan(asymmetry(np.zeros((2, 2), np.float32)))


def test_condition_number_against_numpy_and_of_an_orthogonal_and_a_singular_matrix():
    m = np.random.default_rng(2).normal(size=(2, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(condition_number(m), np.linalg.cond(np.float64(m)), rtol=1e-3)
    assert condition_number(np.linalg.qr(m[0])[0]) == pytest.approx(1, abs=1e-5)
    assert condition_number(np.diag(np.float32([1, 0]))) > 1e30


def test_sixteen_bit_input_is_computed_in_float32():
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 4)), jnp.bfloat16)
    for function in (hfc_lfc_ratio, asymmetry, condition_number):
        assert function(x).dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hfc_lfc_ratio(np.ones(3)), r"\[..., N, D\].*\(3,\)"),
        (lambda: hfc_lfc_ratio(np.ones((3, 2)), norm="l2"), "'l2' is not known.*spectral"),
        (lambda: hfc_lfc_ratio(np.ones((3, 2)), mean="median"), "'median' is not known.*causal"),
        (lambda: asymmetry(np.ones((3, 2))), r"square.*\(3, 2\)"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_spectral_norm_survives_tiny_and_huge_entries():
    x = np.random.default_rng(4).normal(0.3, 1, (9, 4)).astype(np.float32)
    want = hfc_lfc_ratio(x, "spectral")
    for scale in (1e-15, 1e15):  # their squares are outside of float32
        np.testing.assert_allclose(
            hfc_lfc_ratio(x * np.float32(scale), "spectral"), want, rtol=1e-5
        )


@pytest.mark.parametrize(("norm", "order"), [("fro", "fro"), ("spectral", 2)])
def test_causal_ratio_by_its_definition(norm, order):
    x = np.random.default_rng(5).normal(0.3, 1, (2, 6, 9)).astype(np.float32)
    got = jax.jit(hfc_lfc_ratio, static_argnames=("norm", "mean"))(x, norm=norm, mean="causal")
    for one, ratio in zip(np.float64(x), got, strict=True):
        low = np.stack([one[: i + 1].mean(axis=0) for i in range(len(one))])
        want = np.linalg.norm(one - low, order) / np.linalg.norm(low, order)
        np.testing.assert_allclose(ratio, want, rtol=1e-5)


def test_causal_ratio_does_not_look_ahead():
    """A single outlier at the end: all of HFC is in its row, and no earlier row's mean has it."""
    x = np.ones((4, 2), np.float32)
    x[3] = 5
    # Row 4: mean 2, difference 3; the others: mean 1, difference 0.
    want = np.sqrt(2 * 3**2) / np.sqrt(2 * (3 * 1 + 2**2))
    np.testing.assert_allclose(hfc_lfc_ratio(x, mean="causal"), want, rtol=1e-6)


def test_all_ratios_have_names():
    x = np.random.default_rng(6).normal(size=(3, 5, 4)).astype(np.float32)
    plain, causal = hfc_lfc_ratios(x, causal=False), hfc_lfc_ratios(x, causal=True)
    assert list(plain) == ["fro", "spectral"]
    assert list(causal) == ["fro", "spectral", "causal_fro", "causal_spectral"]
    np.testing.assert_array_equal(causal["fro"], plain["fro"])
    assert (causal["causal_fro"] != causal["fro"]).all()


def test_departure_from_normality_of_known_matrices():
    normal = np.float32([[0, -1], [1, 0]])
    assert henrici(normal, np.complex64([1j, -1j])) == pytest.approx(0, abs=1e-3)
    nilpotent = np.float32([[0, 7], [0, 0]])
    assert henrici(nilpotent, np.complex64([0, 0])) == 1
    half = np.float32([[1, 1], [0, 0]])  # ||M||^2 = 2, sum |lambda|^2 = 1
    np.testing.assert_allclose(henrici(half, np.complex64([1, 0])), np.sqrt(0.5), rtol=1e-6)
