"""Unit lower-triangular inverses against float64 substitution and the closed product form."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.ops import delta_inverse, householder_inverse, triangular, unit_lower_inverse

STRENGTHS = (0.0, 0.5, 0.835, 1.0, 2.0)
SIZES = (1, 2, 15, 17, 64, 100, 256)
MORE_SIZES = (16, 31, 128)
DIM = 64
invert = jax.jit(delta_inverse)


def unit(keys):
    return keys / np.linalg.norm(keys, axis=-1, keepdims=True)


def make_keys(c, k=DIM, seed=0):
    """Unit keys [kinds, c, k], most of them the kinds on which Neumann doubling explodes."""
    rng = np.random.default_rng([seed, c, k])
    draw = rng.standard_normal
    mean = unit(draw(k))
    orthonormal = np.linalg.qr(draw((max(c, k), max(c, k))))[0][:c, :k]
    kinds = dict(
        gaussian=draw((c, k)),
        equal=np.broadcast_to(draw(k), (c, k)),
        cosine_09=3 * mean + unit(draw((c, k))),
        positive=np.abs(draw((c, k))),
        orthonormal=orthonormal + (np.linalg.norm(orthonormal, axis=-1) < 1e-9)[:, None],
        low_rank=draw((c, 3)) @ draw((3, k)),
        period_2=draw((2, k))[np.arange(c) % 2],
    )
    return np.stack([unit(keys) for keys in kinds.values()])


def substitute(k, beta):
    """Float64 substitution for keys [..., C, K] and strengths [..., C]."""
    n = beta[..., None] * np.tril(k @ np.swapaxes(k, -1, -2), -1)
    eye = np.eye(n.shape[-1])
    solve = functools.partial(scipy.linalg.solve_triangular, lower=True, unit_diagonal=True)
    flat = [solve(eye + x, eye) for x in n.reshape(-1, *eye.shape)]
    return np.stack(flat).reshape(n.shape)


def product_form(k, beta):
    """Y_ti = -beta_t k_t^T H_{t-1} ... H_{i+1} k_i in float64, straight from the formula."""
    c, dim = k.shape
    y = np.eye(c)
    for t in range(c):
        for i in range(t):
            carried = k[i]
            for j in range(i + 1, t):
                carried = (np.eye(dim) - beta[j] * np.outer(k[j], k[j])) @ carried
            y[t, i] = -beta[t] * k[t] @ carried
    return y


def strict_bound(k, beta):
    """beta_t |k_t| |k_i|, which the entries obey while beta |k|^2 <= 2."""
    norm = np.linalg.norm(k, axis=-1)
    return (beta * norm)[..., :, None] * norm[..., None, :]


def check_inverse(c, method="delta"):
    # A millionth short of unit norm: unit keys rounded to float32 can exceed beta |k|^2 = 2, where
    # the bound itself grows by (2 |k|^2 - 1)^C.
    keys = np.float32(make_keys(c) * (1 - 1e-6))
    keys = np.broadcast_to(keys, (len(STRENGTHS), *keys.shape))
    beta = np.broadcast_to(np.float32(STRENGTHS)[:, None, None], keys.shape[:-1])
    got = np.asarray(invert(keys, beta), np.float64)
    keys, beta = keys.astype(np.float64), beta.astype(np.float64)
    error = np.max(np.abs(got - substitute(keys, beta)), axis=(1, 2, 3))
    assert np.all(error[:-1] <= 1e-5)
    # At beta = 2 nothing contracts, and the rounding of K K^T itself grows along the chunk.
    assert error[-1] <= (1e-4 if c <= 64 else 1e-3)
    below = np.tril(np.abs(got), -1)
    assert np.all(below <= strict_bound(keys, beta) * (1 + 1e-5))
    assert np.all(np.diagonal(got, axis1=-2, axis2=-1) == 1)
    assert np.all(np.triu(got, 1) == 0)


@pytest.mark.parametrize("c", SIZES)
def test_inverse_matches_substitution_and_stays_bounded(c):
    check_inverse(c)


@pytest.mark.slow
@pytest.mark.parametrize("c", MORE_SIZES)
def test_inverse_matches_substitution_and_stays_bounded_more_sizes(c):
    check_inverse(c)


def test_repeated_keys_give_the_exact_bidiagonal_inverse():
    k = np.broadcast_to(np.float32([1, 0, 0, 0]), (64, 4))
    want = np.eye(64) - np.eye(64, k=-1)
    np.testing.assert_array_equal(invert(k, np.ones(64, np.float32)), want)


def test_inverse_beyond_the_bound_is_not_clipped():
    # Random strictly lower input has huge true entries.
    n = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    want = scipy.linalg.solve_triangular(
        np.eye(64) + np.tril(n.astype(np.float64), -1), np.eye(64), lower=True
    )
    assert np.max(np.abs(want)) > 1e6
    np.testing.assert_allclose(
        unit_lower_inverse(n), want, rtol=0, atol=1e-3 * np.max(np.abs(want))
    )


def test_only_the_strictly_lower_part_is_read():
    n = np.random.default_rng(0).standard_normal((2, 3, 20, 20)).astype(np.float32) / 10
    poisoned = np.where(np.tril(np.ones((20, 20), bool), -1), n, np.nan)
    np.testing.assert_array_equal(unit_lower_inverse(poisoned), unit_lower_inverse(np.tril(n, -1)))


def test_methods_agree():
    n = np.random.default_rng(0).standard_normal((3, 17, 17)).astype(np.float32) / 10
    np.testing.assert_allclose(
        unit_lower_inverse(n), unit_lower_inverse(n, method="solve"), atol=2e-6
    )


def test_narrow_input_is_inverted_in_float32():
    k = make_keys(33).astype(jnp.bfloat16)
    got = delta_inverse(k, 0.835)
    assert got.dtype == jnp.float32
    wide = np.asarray(k, np.float64)
    beta = np.full(wide.shape[:-1], 0.835)
    assert np.max(np.abs(np.asarray(got) - substitute(wide, beta))) <= 1e-5


def test_gate_conjugates_the_inverse(x64):
    rng = np.random.default_rng(0)
    k, beta = make_keys(20), rng.uniform(0, 2, (7, 20))
    g = -rng.exponential(1.0, (7, 20))
    gamma = np.exp(np.cumsum(g, axis=-1))
    want = gamma[..., :, None] * substitute(k, beta) / gamma[..., None, :]
    np.testing.assert_allclose(delta_inverse(k, beta, g=g), want, atol=1e-13)


def test_strong_gates_are_finite_with_their_gradients():
    k, g = np.float32(make_keys(20)), np.full((7, 20), -1e4, np.float32)
    value, gradients = jax.value_and_grad(
        lambda k, g: jnp.sum(delta_inverse(k, g=g)), argnums=(0, 1)
    )(k, g)
    assert np.isclose(value, 7 * 20)
    assert all(np.all(np.isfinite(x)) for x in gradients)


def test_derivatives_in_both_modes_and_twice(x64):
    n = np.random.default_rng(0).standard_normal((9, 9)) / 3
    scalar = lambda n: jnp.sum(jnp.sin(unit_lower_inverse(n)))  # noqa: E731
    jax.test_util.check_grads(scalar, (n,), order=2, modes=("fwd", "rev"))
    assert np.all(np.triu(jax.grad(scalar)(n)) == 0)


def test_vmap_and_leading_axes():
    n = np.random.default_rng(0).standard_normal((2, 3, 10, 10)).astype(np.float32) / 5
    mapped = jax.vmap(jax.vmap(unit_lower_inverse))(n)
    np.testing.assert_allclose(mapped, unit_lower_inverse(n), atol=1e-6)


@pytest.mark.parametrize("count", [36, 34, 37])  # in pieces of 4, in pieces of 2, at once
def test_a_large_batch_is_inverted_piece_by_piece(monkeypatch, count):
    monkeypatch.setattr(triangular, "_CPU_PIECE", 5 * 11 * 11)
    monkeypatch.setattr(triangular, "_CPU_PIECES", 4)
    n = np.float32(np.random.default_rng(0).standard_normal((count, 1, 11, 11)) / 5)
    n[::2] = 1  # of repeated unit keys
    program = jax.make_jaxpr(unit_lower_inverse)(n)
    assert ("scan" in str(program)) == (count != 37)
    want = np.linalg.inv(np.tril(np.float64(n), -1) + np.eye(11))
    np.testing.assert_allclose(jax.jit(unit_lower_inverse)(n), want, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(unit_lower_inverse)(n), want, atol=1e-5)
    gradient = jax.grad(lambda n: jnp.sum(unit_lower_inverse(n)))(n)
    transposed = np.swapaxes(want, -1, -2)
    by_hand = -np.tril(transposed @ np.ones((11, 11)) @ transposed, -1)
    np.testing.assert_allclose(gradient, by_hand, atol=1e-4)


@st.composite
def chunks(draw, longest=12):
    c, dim = draw(st.integers(1, longest)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keys = rng.standard_normal((c, dim)) * 10.0 ** rng.integers(-3, 1, (c, 1))
    kind = draw(st.sampled_from(["free", "repeated", "zeros"]))
    if kind == "repeated":
        keys[:] = keys[:1]
    elif kind == "zeros":
        keys[rng.random(c) < 0.5] = 0
    keys /= np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1)
    return keys, rng.uniform(0, 2, c)


def padded(k, beta, longest=12):
    """One compilation for all lengths: tokens with zero keys after the chunk change nothing."""
    c, dim = k.shape
    k = np.pad(k, ((0, longest - c), (0, 6 - dim)))
    return k, np.pad(beta, (0, longest - c))


property_test = functools.partial(settings, deadline=None, derandomize=True, max_examples=25)


@property_test()
@given(chunks())
def test_both_inverses_equal_the_product_form(chunk):
    k, beta = chunk
    want = product_form(k, beta)
    with jax.enable_x64(True):
        for rule in (delta_inverse, householder_inverse):
            got = jax.jit(rule)(*padded(k, beta))
            np.testing.assert_allclose(got[: len(k), : len(k)], want, rtol=0, atol=1e-12)
    # |k| <= 1 and beta <= 2, so the bound holds.
    assert np.all(np.abs(np.tril(want, -1)) <= strict_bound(k, beta) + 1e-12)


@property_test()
@given(chunks())
def test_entries_do_not_depend_on_later_tokens_and_blocks_invert_blocks(chunk):
    k, beta = chunk
    c = len(k) // 2
    with jax.enable_x64(True):
        whole = np.asarray(jax.jit(delta_inverse)(*padded(k, beta)))
        first = np.asarray(jax.jit(delta_inverse)(*padded(k[:c], beta[:c])))
        last = np.asarray(jax.jit(delta_inverse)(*padded(k[c:], beta[c:])))
    size = len(k) - c
    np.testing.assert_allclose(whole[:c, :c], first[:c, :c], atol=1e-12)
    np.testing.assert_allclose(whole[c : len(k), c : len(k)], last[:size, :size], atol=1e-12)


@property_test()
@given(chunks())
def test_two_steps_compose(chunk):
    """S after both halves is the second half's map of S after the first: (I - K^T W) products."""
    k, beta = chunk
    dim, c = k.shape[1], len(k) // 2

    def transition(k, beta):
        y = np.asarray(delta_inverse(*padded(k, beta)))[: len(k), : len(k)]
        return np.eye(dim) - k.T @ y @ (beta[:, None] * k)

    with jax.enable_x64(True):
        whole = transition(k, beta)
        halves = transition(k[c:], beta[c:]) @ transition(k[:c], beta[:c]) if c else whole
    np.testing.assert_allclose(whole, halves, atol=1e-12)
    product = np.eye(dim)
    for key, strength in zip(k, beta, strict=True):
        product = (np.eye(dim) - strength * np.outer(key, key)) @ product
    np.testing.assert_allclose(whole, product, atol=1e-12)


def test_the_bound_is_sharp(x64):
    k = np.zeros((64, 3))
    k[:, 0] = 1.45
    assert 890 < np.max(np.abs(delta_inverse(k))) < 894  # made once with float64 NumPy
    k[:, 0] = np.sqrt(2)
    assert np.isclose(np.max(np.abs(delta_inverse(k))), 2)


def test_the_printed_product_has_one_factor_too_many(x64):
    k = make_keys(6)[0]
    printed = -k[5] @ (np.eye(DIM) - np.outer(k[5], k[5])) @ k[4]  # H_{i+1 -> t}, t = 5, i = 4
    assert abs(printed) < 1e-14  # 0 for unit keys
    got = np.asarray(delta_inverse(k))[5, 4]
    assert np.isclose(got, -k[5] @ k[4]) and abs(got) > 1e-3


@pytest.mark.parametrize(
    "call,error,words",
    [
        (lambda: unit_lower_inverse(jnp.ones((3, 4))), ValueError, r"\(3, 4\)"),
        (lambda: unit_lower_inverse(jnp.ones((3, 3), int)), TypeError, "int"),
        (lambda: unit_lower_inverse(jnp.ones((3, 3)), method="neumann"), ValueError, "neumann"),
        (lambda: delta_inverse(jnp.ones(3)), ValueError, r"\(3,\)"),
        (lambda: delta_inverse(jnp.ones((4, 3), int)), TypeError, "int"),
        (lambda: delta_inverse(jnp.ones((4, 3)), jnp.ones(3)), ValueError, r"beta .*\(3,\)"),
        (lambda: delta_inverse(jnp.ones((4, 3)), g=jnp.ones((4, 3))), ValueError, "g has shape"),
        (lambda: householder_inverse(jnp.ones((4, 3)), jnp.ones(3)), ValueError, "beta"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
