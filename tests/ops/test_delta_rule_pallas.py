"""The Pallas kernels, interpreted on this machine and lowered for the machines they are for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops import chunk_delta_rule, delta_rule, unit_lower_inverse
from spectral_flax.ops.pallas import inverse as inverse_kernel
from spectral_flax.ops.pallas.delta_rule import Kernels
from tests.ops.test_delta_rule import make_inputs, relative_rms

VARIANTS = ("gpu", "tpu")


@pytest.fixture(params=VARIANTS)
def variant(request, monkeypatch):
    kernels = Kernels(request.param, interpret=True)
    monkeypatch.setattr(delta_rule, "_kernels", lambda: kernels)
    return request.param


def value_and_gradients(x, weights, **static):
    def loss(x):
        output, state = chunk_delta_rule(**x, **static)
        return jnp.vdot(weights[0], output) + jnp.vdot(weights[1], state)

    outputs = chunk_delta_rule(**x, **static)
    return outputs, jax.grad(loss)(x)


@pytest.mark.parametrize(
    "t,h,k,v,chunk,gated",
    [(1, 1, 1, 6, 16, False), (65, 3, 20, 40, 16, True), (100, 1, 64, 24, 32, True)],
)
def test_kernels_equal_xla_with_gradients(variant, t, h, k, v, chunk, gated):
    x = make_inputs(t, h, k, v)
    if not gated:
        x.pop("g")
    rng = np.random.default_rng(0)
    weights = [
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in (x["v"].shape, x["initial_state"].shape)
    ]
    run = functools.partial(value_and_gradients, x, weights, chunk_size=chunk)
    got, want = (
        jax.jit(run, static_argnames="implementation")(implementation="pallas"),
        jax.jit(run, static_argnames="implementation")(implementation="xla"),
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_rms(a, b) < 2e-6


def test_kernels_equal_xla_on_packed_sequences(variant):
    x = make_inputs(70, 2, 16, 8)
    offsets = jnp.asarray([0, 0, 5, 37, 37, 70], jnp.int32)
    x["initial_state"] = make_inputs(1, 2, 16, 8, batch=5)["initial_state"]
    x["cu_seqlens"] = offsets
    got = chunk_delta_rule(**x, chunk_size=16, implementation="pallas")
    want = chunk_delta_rule(**x, chunk_size=16, implementation="xla")
    for a, b in zip(got, want, strict=True):
        assert relative_rms(a, b) < 2e-6


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_kernel_inverse_is_safe_on_correlated_keys(platform):
    keys = np.stack([np.eye(1, 16).repeat(64, 0), np.full((64, 16), 0.25)])
    n = jnp.asarray(0.835 * np.tril(keys @ keys.transpose(0, 2, 1), -1), jnp.float32)
    got = inverse_kernel.inverse(n, variant=platform, interpret=True)
    np.testing.assert_allclose(got, unit_lower_inverse(n), atol=1e-6)


@pytest.mark.parametrize("gpu_or_tpu,platform", [("gpu", "cuda"), ("tpu", "tpu")])
def test_kernels_lower_for_the_chips_they_are_for(gpu_or_tpu, platform, monkeypatch):
    # Compiling needs the chip; lowering catches what Triton and Mosaic do not support.
    kernels = Kernels(gpu_or_tpu, interpret=False)
    monkeypatch.setattr(delta_rule, "_kernels", lambda: kernels)
    x = make_inputs(130, 2, 60, 40) | dict(cu_seqlens=jnp.asarray([0, 30, 30, 130]))
    x["initial_state"] = make_inputs(1, 2, 60, 40, batch=3)["initial_state"]
    offsets = x.pop("cu_seqlens")

    def loss(x):
        output, state = chunk_delta_rule(**x, cu_seqlens=offsets, implementation="pallas")
        return jnp.sum(output) + jnp.sum(state)

    lowered = jax.jit(jax.grad(loss)).trace(x).lower(lowering_platforms=(platform,))
    assert "custom_call" in lowered.as_text()


def test_second_derivatives_of_kernels_are_refused():
    x = make_inputs(3, 1, 4, 4)

    def loss(v):
        return jnp.sum(chunk_delta_rule(x["q"], x["k"], v, implementation="pallas")[0] ** 2)

    with pytest.raises(NotImplementedError, match="implementation='xla'"):
        jax.grad(lambda v: jnp.sum(jax.grad(loss)(v) ** 2))(x["v"])


def test_large_keys_are_refused():
    with pytest.raises(ValueError, match="K is 257"):
        chunk_delta_rule(**make_inputs(3, 1, 257, 4), implementation="pallas")
