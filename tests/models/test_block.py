"""Parts of the block: GELU, causal masks, stochastic depth."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.models.block import BlockConfig, gelu
from spectral_flax.models.encoder import Encoder, EncoderConfig

GRID = np.concatenate([np.linspace(-8, 8, 161), [-1e30, -40.0, -1e-30, 0.0, 1e-30, 40.0, 1e30]])


def test_gelu_and_its_derivatives(x64):
    cdf = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in GRID])
    density = np.array([math.exp(-0.5 * x * x) if abs(x) < 50 else 0.0 for x in GRID])
    density /= math.sqrt(2 * math.pi)
    x = jnp.asarray(GRID)
    assert x.dtype == jnp.float64
    # 1 + erf cancels for negative x, so the error is absolute: x times a rounding of 1.
    np.testing.assert_allclose(gelu(x), GRID * cdf, atol=1e-14, rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(x), cdf + GRID * density, atol=1e-14)
    second = jax.vmap(jax.grad(jax.grad(gelu)))(jnp.asarray(np.linspace(-6.0, 6.0, 49)))
    t = np.linspace(-6.0, 6.0, 49)
    expected = (2 - t**2) * np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(second, expected, atol=1e-14)


def test_gelu_derivative_equals_autodiff_in_float32():
    def plain(x):
        return x * 0.5 * (1.0 + jax.lax.erf(x * 2**-0.5))

    x = jnp.linspace(-6.0, 6.0, 401, dtype=jnp.float32)
    ours, theirs = (jax.jit(jax.vmap(jax.value_and_grad(f)))(x) for f in (gelu, plain))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def encoder(width=6, heads=2, depth=4, **block) -> Encoder:
    config = BlockConfig(width, heads, mlp_dim=2 * width, **block)
    return Encoder(EncoderConfig(config, depth, "standard"))


def test_causal_stack_never_looks_ahead():
    tokens, width = 5, 6
    stack = encoder(width, depth=2, causal=True)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, tokens, width)), jnp.float32)
    variables = stack.init(jax.random.key(0), x, True)
    jacobian = jax.jit(jax.jacrev(lambda x: stack.apply(variables, x, True)[0][0]))(x)[:, :, 0]
    reach = np.abs(np.asarray(jacobian)).max(axis=(1, 3))  # [output token, input token]
    allowed = np.tril(np.ones((tokens, tokens), bool))
    assert (reach[~allowed] == 0).all() and (reach[allowed] > 0).all()


DEPTH, SAMPLES, RATE = 4, 4000, 0.6


@pytest.fixture(scope="module")
def dropped_stack():
    """Residual streams of identical samples through a stack with stochastic depth, and without.

    Returns (stream [2L + 1, B, T, D] before and after every branch, the same without dropping).
    """
    stack = encoder(depth=DEPTH, stochastic_depth=RATE)
    sample = np.random.default_rng(1).standard_normal((1, 2, 6)).astype(np.float32)
    variables = stack.init(jax.random.key(0), sample, True)

    def stream(batch, deterministic):
        _, state = stack.apply(
            variables,
            batch,
            deterministic,
            rngs={"dropout": jax.random.key(3)},
            mutable=["intermediates"],
        )
        blocks = state["intermediates"]["run_0"]["blocks"]
        branches = jnp.stack([blocks["after_attention"][0], blocks["after_mlp"][0]], axis=1)
        return jnp.concatenate([batch[None], branches.reshape(2 * DEPTH, *batch.shape)])

    stream = jax.jit(stream, static_argnums=1)
    batch = jnp.asarray(np.repeat(sample, SAMPLES, axis=0))
    return np.asarray(stream(batch, False)), np.asarray(stream(batch[:1], True))


def test_stochastic_depth_rates_are_linear(dropped_stack):
    stream, _ = dropped_stack
    dropped = (np.diff(stream, axis=0) == 0).all(axis=(2, 3))  # [2L, B]
    assert not dropped[:2].any(), "layer 0 is never dropped"
    rates = np.repeat(RATE * np.arange(DEPTH) / (DEPTH - 1), 2)
    deviation = np.sqrt(rates * (1 - rates) / SAMPLES)
    assert (np.abs(dropped.mean(axis=1) - rates) <= 4 * deviation).all()
    # Independent draws for each branch: of two with rates p and q, both drop p q of the samples.
    for one in range(2, 2 * DEPTH):
        for other in range(one + 1, 2 * DEPTH):
            both = (dropped[one] & dropped[other]).mean()
            product = rates[one] * rates[other]
            assert abs(both - product) < 4 * math.sqrt(product * (1 - product) / SAMPLES)


def test_stochastic_depth_keeps_the_expectation(dropped_stack):
    stream, plain = dropped_stack
    # Layer 0 keeps all, so the first branch of layer 1 sees the same input in every sample: those
    # that keep it add branch / (1 - rate), and the mean over samples is the branch.
    first = 2
    same = np.broadcast_to(plain[first], stream[first].shape)
    np.testing.assert_allclose(stream[first], same, atol=1e-5)
    added = stream[first + 1] - stream[first]
    kept = (added != 0).any(axis=(1, 2))
    branch = (plain[first + 1] - plain[first])[0]
    rate = RATE / (DEPTH - 1)
    expected = np.broadcast_to(branch / (1 - rate), added[kept].shape)
    np.testing.assert_allclose(added[kept], expected, atol=1e-5)
    error = 4 * math.sqrt(rate / (1 - rate) / SAMPLES) * np.abs(branch)
    assert (np.abs(added.mean(axis=0) - branch) <= error + 1e-5).all()
