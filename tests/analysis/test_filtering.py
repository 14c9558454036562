"""Filter ratio, asymmetry and condition number against float64 NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.analysis import asymmetry, condition_number, hfc_lfc_ratio


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
        (lambda: asymmetry(np.ones((3, 2))), r"square.*\(3, 2\)"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()
