"""Certificates never claim what is false, and the audit is the full method: both on thousands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_families import attention_families, layer_spectra
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.analysis import (
    DominanceKind,
    Verdict,
    attention_eigvals,
    audit_dominance,
    bounds,
    certify_dominance,
    certify_with_rung,
    dominance,
    leading,
)

# One shape for most tests: compiling the ladder takes seconds, running it does not.
N, J, COUNT = 24, 12, 510
FAMILIES = tuple(attention_families(np.random.default_rng(0), 2, 1))

full = jax.jit(lambda lambda_h, a: dominance(lambda_h, attention_eigvals(a)))
audit = jax.jit(audit_dominance)
certify = jax.jit(certify_with_rung)


def non_perron(a):
    """Eigenvalues of float32 `a` on the complement of 1, by an orthonormal basis, in float64."""
    n = a.shape[-1]
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    return np.linalg.eigvals(basis.T @ np.float64(a) @ basis)


def near_ties(rng, count):
    """A and lambda_H whose best Perron pair and best other pair differ by 1e-2 ... 1e-8.

    Not by 1e-6 ... 1e-5: the tie tolerance lies there (3.8e-6), and whether a pair counts as tied
    is then a matter of the eigensolver's last bits, which differ between batches.
    """
    a = attention_families(rng, N, count)["low rank"]
    lambda_h = np.zeros((count, 2), np.complex64)
    for i in range(count):
        others = non_perron(a[i])
        strong = rng.uniform(-4, -2)
        rival = np.abs(1 + strong * others).max()
        gap = 10.0 ** rng.choice([rng.uniform(-8, -6), rng.uniform(-5, -2)]) * rng.choice([-1, 1])
        lambda_h[i] = strong, rival * (1 + gap) - 1
    return lambda_h, a


def cases(count):
    rng = np.random.default_rng(7)
    for name, a in attention_families(rng, N, count).items():
        yield name, layer_spectra(rng, count, J), a
    lambda_h, a = near_ties(rng, count)
    yield "near tie", np.tile(lambda_h, (1, J // 2)), a


def check_audit_against_the_full_method(count):
    seen = 0
    for name, lambda_h, a in cases(count):
        want = jax.tree.map(np.asarray, full(lambda_h, a))
        got = jax.tree.map(np.asarray, audit(lambda_h, a))
        verdict, rung = map(np.asarray, certify(lambda_h, a))
        np.testing.assert_array_equal(got.kind, want.kind, err_msg=name)
        np.testing.assert_array_equal(got.h_index, want.h_index, err_msg=name)
        claimed = verdict != Verdict.UNDECIDED
        smooths = want.kind == DominanceKind.PERRON
        np.testing.assert_array_equal(
            verdict[claimed] == Verdict.SMOOTHING, smooths[claimed], err_msg=name
        )
        np.testing.assert_array_equal(claimed, rung > 0)
        # What a rung decided is exact to rounding; the rest went through the eigensolver in other
        # batches, where nearly defective low-temperature matrices scatter by more than rounding.
        np.testing.assert_allclose(got.magnitude[claimed], want.magnitude[claimed], rtol=1e-5)
        np.testing.assert_array_equal(got.tied[claimed], want.tied[claimed], err_msg=name)
        # The position of an OTHER is that of its real part among others equal up to rounding.
        named = claimed & (want.kind != DominanceKind.OTHER)
        np.testing.assert_array_equal(got.a_index[named], want.a_index[named], err_msg=name)
        seen += len(a)
    return seen


def test_audit_equals_the_full_method_on_five_thousand_matrices():
    assert check_audit_against_the_full_method(COUNT) >= 5000


@pytest.mark.slow
def test_audit_equals_the_full_method_on_thirty_thousand_matrices():
    assert check_audit_against_the_full_method(3000) >= 30000


def test_every_rung_decides_something_and_easy_matrices_need_no_eigenvalues():
    rng = np.random.default_rng(3)
    families = attention_families(rng, N, COUNT)
    lambda_h = layer_spectra(rng, COUNT, J)
    rungs = {name: np.asarray(certify(lambda_h, a)[1]) for name, a in families.items()}
    assert (rungs["causal"] == 1).all()
    assert (rungs["near uniform"] > 0).mean() > 0.8
    assert {1, 2, 3} <= set(rungs["near uniform"]) | set(rungs["low rank"])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(FAMILIES), st.integers(0, 10_000))
def test_every_bound_is_one_for_the_exact_eigenvalues(family, seed):
    a = attention_families(np.random.default_rng(seed), N, 1)[family]
    radius = np.abs(non_perron(a[0])).max()
    got = [float(b) for b in all_bounds(a)]
    assert min(got) >= radius, (family, got, radius)


@jax.jit
def all_bounds(a):
    error = bounds.deflation_error(a)
    powers = [bounds.first_power(a, error)]
    for _ in range(7):  # up to D^128
        powers.append(bounds.squared(powers[-1]))
    power_bounds = [bounds.power_bound(power)[0] for power in powers]
    return [bounds.one_pass_bound(a, error)[0], *power_bounds]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([f for f in FAMILIES if f != "causal"]),
    st.integers(0, 10_000),
    st.floats(0.6, 0.95),
)
def test_every_eigenvalue_above_the_threshold_is_within_the_radius_of_a_found_one(
    family, seed, fraction
):
    rng = np.random.default_rng(seed)
    a = attention_families(rng, N, 1)[family]
    exact = non_perron(a[0])
    threshold = np.float32(fraction * np.abs(exact).max())
    values, weight = (np.asarray(x)[0] for x in found_with_weights(a, threshold[None]))
    if not np.isfinite(weight).all():  # nothing is claimed, for want of eigenvalues that lead
        assert family not in ("low rank", "symmetric scores")
        return
    # Any radii that can be afforded will do: those that share out the total at random.
    share = rng.dirichlet(np.full(len(weight), rng.choice([0.3, 10.0]))) + 1e-9
    radius = 1.001 * share.sum() * weight / share
    assert bool(leading.affordable(jnp.asarray(weight[None]), jnp.asarray(radius[None])).all())
    assert (weight > 0).any() or not (np.abs(exact) >= threshold).any()
    for z in exact[np.abs(exact) >= threshold]:
        assert (np.abs(values - z) <= radius)[weight > 0].any()
    # and the other way: an isolated found eigenvalue is one
    for i in np.flatnonzero(weight > 0):
        others = (weight > 0) & (np.arange(len(weight)) != i)
        alone = (np.abs(values - values[i]) > radius + radius[i])[others].all()
        if alone and np.abs(values[i]) - radius[i] > threshold:
            assert (np.abs(exact - values[i]) <= radius[i]).sum() == 1


@jax.jit
def found_with_weights(a, threshold):
    first = bounds.first_power(a, bounds.deflation_error(a))
    found = leading.leading_eigenvalues(
        first, leading.Effort(rank=12, steps=60, small_steps=60, squarings=5)
    )
    return found.values, leading.weights(found, threshold)


def test_no_claim_is_false_near_a_tie():
    lambda_h, a = near_ties(np.random.default_rng(11), COUNT)
    verdict = np.asarray(certify(np.tile(lambda_h, (1, J // 2)), a)[0])
    assert 0 < (verdict == Verdict.UNDECIDED).sum() < COUNT
    for v, h, one in zip(verdict, np.complex128(lambda_h), a, strict=True):
        perron = np.abs(1 + h).max()
        other = np.abs(1 + h[:, None] * non_perron(one)).max()
        assert v != Verdict.SMOOTHING or perron > other
        assert v != Verdict.SHARPENING or other > perron


def test_ties_and_not_finite_input_get_no_claim_and_do_not_disturb_others():
    a = np.full((5, 7, 6, 6), 1 / 6, np.float32)
    a[1, 0] = np.eye(6)  # causal, every eigenvalue 1: tokens keep their differences for ever
    a[2, 1, 2, 3] = np.nan
    lambda_h = np.tile(np.array([0.5, 0.3, 0.1], np.complex64), (7, 1))
    lambda_h[4, 1] = np.nan
    verdict = np.full((5, 7), Verdict.SMOOTHING)
    verdict[1, 0] = verdict[2, 1] = verdict[:, 4] = Verdict.UNDECIDED
    np.testing.assert_array_equal(jax.jit(certify_dominance)(lambda_h, a), verdict)
    kind = np.full((5, 7), DominanceKind.PERRON)
    kind[2, 1] = kind[:, 4] = DominanceKind.FAILED
    got = audit(lambda_h, a)
    np.testing.assert_array_equal(got.kind, kind)
    assert got.tied[1, 0] == 5 and got.tied[0, 0] == 0


def test_leading_axes_broadcast_and_chunks_cover_every_matrix():
    rng = np.random.default_rng(1)
    a = attention_families(rng, 6, 35)["random"].reshape(5, 7, 6, 6)
    lambda_h = layer_spectra(rng, 7, 3)
    got = audit(lambda_h, a)
    want = full(lambda_h, a)
    assert got.kind.shape == (5, 7)
    np.testing.assert_array_equal(got.kind, want.kind)
    assert certify_dominance(lambda_h[:0], a[:, :0]).shape == (5, 0)


def test_double_precision(x64):
    rng = np.random.default_rng(2)
    a = np.float64(attention_families(rng, 10, 20)["local"])
    a /= a.sum(-1, keepdims=True)
    lambda_h = np.complex128(layer_spectra(rng, 20, 4))
    got, want = audit(lambda_h, a), full(lambda_h, a)
    np.testing.assert_array_equal(got.kind, want.kind)
    np.testing.assert_allclose(got.magnitude, want.magnitude, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape_h", "shape_a", "words"),
    [((3,), (4, 5), r"\[..., N, N\].*\(4, 5\)"), ((2, 3), (3, 4, 4), "do not broadcast")],
)
def test_bad_input_is_one_clear_line(shape_h, shape_a, words):
    for function in (certify_dominance, audit_dominance):
        with pytest.raises(ValueError, match=words):
            function(np.ones(shape_h, np.complex64), np.ones(shape_a, np.float32))
